#!/usr/bin/env python3
"""Times ggml's gated_delta_net beside GatedDeltaNet of this library in ONNX Runtime: the same
operands, one process, rounds in turns. ggml is the one inside the package xllamacpp, a module for
Python whose C functions are called through ctypes; `deltaworks bench --peers` runs this script.

ggml has no gate activations and no norm, so the node is asked for none either.

Usage: .venv/bin/pip install xllamacpp
       .venv/bin/python bench/ggml_bench.py [--threads 1] [--seconds 0.5] [--json]
"""

import argparse
import ctypes
import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
from onnxruntime_bench import aligned  # which makes support importable
from support import LIBRARY, Node, bind, offsets, session

KEY_HEADS, VALUE_HEADS, DIM = 16, 48, 128  # Qwen3.5 27B
PER_KEY = VALUE_HEADS // KEY_HEADS
WHAT = (
    f"gated_delta_net without gate activations and norm: {KEY_HEADS} key and {VALUE_HEADS} value "
    f"heads of {DIM} x {DIM} (Qwen3.5-27B), float32"
)
# ggml's value head i reads key head i % KEY_HEADS, ours h reads h // PER_KEY: theirs of ours
THEIRS = np.array([h % PER_KEY * KEY_HEADS + h // PER_KEY for h in range(VALUE_HEADS)])


class InitParameters(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


class Ggml:
    """The C functions that one operator takes. Pointers stay opaque."""

    def __init__(self, threads):
        found = importlib.util.find_spec("xllamacpp")
        if found is None:
            raise SystemExit(
                f"xllamacpp is not installed: {sys.executable} -m pip install xllamacpp"
            )
        module = next(Path(found.origin).parent.glob("xllamacpp*.so"))
        self.library = ctypes.CDLL(str(module))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.new_tensor = self.function(
            "ggml_new_tensor_4d", pointer, pointer, ctypes.c_int, *[integer] * 4
        )
        self.get_data = self.function("ggml_get_data", pointer, pointer)
        # The last argument is how many states to keep.
        self.gated_delta_net = self.function(
            "ggml_gated_delta_net", pointer, *[pointer] * 7, integer
        )
        self.new_graph = self.function("ggml_new_graph", pointer, pointer)
        self.expand = self.function("ggml_build_forward_expand", None, pointer, pointer)
        self.compute = self.function("ggml_backend_graph_compute", ctypes.c_int, pointer, pointer)
        self.version = self.function("ggml_version", ctypes.c_char_p)().decode()
        self.backend = self.function("ggml_backend_cpu_init", pointer)()
        self.function("ggml_backend_cpu_set_n_threads", None, pointer, ctypes.c_int)(
            self.backend, threads
        )
        init = self.function("ggml_init", pointer, InitParameters)
        self.context = init(InitParameters(1 << 29, None, False))

    def function(self, name, result, *arguments):
        found = getattr(self.library, name)
        found.restype, found.argtypes = result, arguments
        return found

    def tensor(self, array):
        """A tensor with ggml's order of extents, the innermost first."""
        made = self.new_tensor(self.context, 0, *reversed(array.shape))
        np.copyto(self.view(made, array.shape), array)
        return made

    def view(self, tensor, shape):
        floats = ctypes.c_float * int(np.prod(shape))
        return np.ctypeslib.as_array(floats.from_address(self.get_data(tensor))).reshape(shape)


def operands(tokens):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    key = normal(tokens, KEY_HEADS, DIM)
    return {
        "query": normal(tokens, KEY_HEADS, DIM),
        "key": key / np.linalg.norm(key, axis=-1, keepdims=True),
        "value": normal(tokens, VALUE_HEADS, DIM),
        "decay": -np.abs(normal(tokens, VALUE_HEADS)),
        "beta": rng.random((tokens, VALUE_HEADS), dtype=np.float32),
        "state": normal(1, VALUE_HEADS, DIM, DIM) * np.float32(0.1),
    }


def our_call(given, threads):
    """A run of the node, and its output."""
    tokens = len(given["query"])
    inputs = [(name, given[name]) for name in ("query", "key", "value")]
    inputs += [("cu_seqlens", offsets([tokens])), ("decay", given["decay"])]
    inputs += [("beta", given["beta"]), ("initial_state", given["state"])]
    outputs = [
        ("output", np.float32, given["value"].shape),
        ("final_state", np.float32, given["state"].shape),
    ]
    node = Node("GatedDeltaNet", inputs, outputs)
    running = session(node.model(), library=LIBRARY, threads=threads)
    binding, kept = running.io_binding(), []
    for name, array in node.feeds().items():
        kept.append(bind(binding, name, aligned(array), binding.bind_input))
    for name, dtype, shape in outputs:
        kept.append(bind(binding, name, aligned(np.zeros(shape, dtype)), binding.bind_output))
    return lambda _kept=kept: running.run_with_iobinding(binding), kept[-2]


def their_call(ggml, given):
    tokens = len(given["query"])
    ours_of = np.argsort(THEIRS)  # our head of each of theirs
    tensors = [
        ggml.tensor(given[name][None])
        if name in ("query", "key")
        else ggml.tensor(
            given[name][None, :, ours_of][..., None]
            if given[name].ndim == 2
            else given[name][None, :, ours_of]
        )
        for name in ("query", "key", "value", "decay", "beta")
    ]
    tensors.append(ggml.tensor(given["state"][:, ours_of]))
    result = ggml.gated_delta_net(ggml.context, *tensors, 1)
    graph = ggml.new_graph(ggml.context)
    ggml.expand(graph, result)
    # Outputs come first in the result, the state behind them.
    output = ggml.view(result, (tokens, VALUE_HEADS, DIM))
    return lambda: ggml.compute(ggml.backend, graph), output


def check(ours, theirs):
    """Raises when the results differ: a wrong result has no speed."""
    error = float(np.abs(ours - theirs[:, THEIRS]).max() / np.abs(ours).max())
    if not error < 1e-4:
        raise SystemExit(f"ggml's gated_delta_net differs from ours by {error:.1e}: not timed")


def time_in_turns(calls, seconds, clock):
    """Median in microseconds and spread (quartiles apart, of the median) of each call."""

    def once(call, repeats):
        start = clock()
        for _ in range(repeats):
            call()
        return (clock() - start) / repeats

    repeats = [max(1, int(5e-3 / min(once(call, 1) for _ in range(2)))) for call in calls]
    samples = [[] for _ in calls]
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(samples[0]) < 5:
        for call, count, sample in zip(calls, repeats, samples, strict=True):
            sample.append(once(call, count))
    quartiles = [np.percentile(sample, [25, 50, 75]) for sample in samples]
    return [
        {"median_us": float(1e6 * median), "spread": float((high - low) / median)}
        for low, median, high in quartiles
    ]


def measure(tokens, threads, seconds):
    given, ggml = operands(tokens), Ggml(threads)
    (ours, our_output), (theirs, their_output) = our_call(given, threads), their_call(ggml, given)
    ours()
    theirs()
    check(our_output, their_output)
    clock = time.thread_time if threads == 1 else time.perf_counter
    our_time, their_time = time_in_turns([ours, theirs], seconds, clock)
    return {
        "call": f"{tokens} token" + ("s" if tokens > 1 else ""),
        "ours": our_time,
        "theirs": their_time,
        "ratio": their_time["median_us"] / our_time["median_us"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="per call (default 0.5)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    rows = [measure(tokens, arguments.threads, arguments.seconds) for tokens in (1, 8, 256)]
    name = f"ggml {Ggml(1).version} (xllamacpp)"
    if arguments.json:
        print(json.dumps({"name": name, "what": WHAT, "results": rows}))
        return
    print(f"{WHAT}\n\n| tokens | this library us | {name} us | ratio |\n|---|---|---|---|")
    for row in rows:
        ours, theirs = row["ours"]["median_us"], row["theirs"]["median_us"]
        print(f"| {row['call']} | {ours:.1f} | {theirs:.1f} | {row['ratio']:.1f}x |")


if __name__ == "__main__":
    main()
