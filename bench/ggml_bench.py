#!/usr/bin/env python3
"""Times ggml's gated_delta_net and ssm_conv beside the nodes of this library in ONNX Runtime: the
same operands, one process, rounds in turns. ggml is the one inside the package xllamacpp, a module
for Python whose C functions are called through ctypes; `deltaworks bench --peers` runs this script.

ggml has no gate activations, no norm and no bias, so the nodes are asked for none either. Its
convolution leaves copying the samples of the last call in front and taking the new state to other
operators, which are not timed; ours does both.

Usage: .venv/bin/pip install xllamacpp
       .venv/bin/python bench/ggml_bench.py [--threads 1] [--seconds 0.5] [--only OPERATOR] [--json]
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

MODEL, KEY_HEADS, VALUE_HEADS, DIM, WIDTH = "Qwen3.5-27B", 16, 48, 128, 4
PER_KEY, CHANNELS = VALUE_HEADS // KEY_HEADS, 2 * KEY_HEADS * DIM + VALUE_HEADS * DIM
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
        self.ssm_conv = self.function("ggml_ssm_conv", pointer, *[pointer] * 3)
        self.silu = self.function("ggml_silu", pointer, *[pointer] * 2)
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
        extents = [1] * (4 - array.ndim) + list(array.shape)
        made = self.new_tensor(self.context, 0, *reversed(extents))
        np.copyto(self.view(made, array.shape), array)
        return made

    def view(self, tensor, shape):
        floats = ctypes.c_float * int(np.prod(shape))
        return np.ctypeslib.as_array(floats.from_address(self.get_data(tensor))).reshape(shape)

    def run_of(self, result, shape):
        """A run of what computes the tensor, and the tensor as an array."""
        graph = self.new_graph(self.context)
        self.expand(graph, result)
        return lambda: self.compute(self.backend, graph), self.view(result, shape)


def bound_run(node, threads):
    """A run of our node on memory of its own, and its first output."""
    running = session(node.model(), library=LIBRARY, threads=threads)
    binding, kept = running.io_binding(), []
    for name, array in node.feeds().items():
        kept.append(bind(binding, name, aligned(array), binding.bind_input))
    for name, dtype, shape in node.outputs:
        kept.append(bind(binding, name, aligned(np.zeros(shape, dtype)), binding.bind_output))
    return lambda _kept=kept: running.run_with_iobinding(binding), kept[-len(node.outputs)]


class GatedDeltaNet:
    name = "gated_delta_net"
    shape = f"{KEY_HEADS} key and {VALUE_HEADS} value heads of {DIM} x {DIM}"
    short_of = "no gate activations, no norm"
    tokens = (1, 8, 1024)

    def __init__(self, tokens):
        self.count, rng = tokens, np.random.default_rng(0)

        def normal(*shape):
            return rng.standard_normal(shape).astype(np.float32)

        key = normal(tokens, KEY_HEADS, DIM)
        self.given = {
            "query": normal(tokens, KEY_HEADS, DIM),
            "key": key / np.linalg.norm(key, axis=-1, keepdims=True),
            "value": normal(tokens, VALUE_HEADS, DIM),
            "decay": -np.abs(normal(tokens, VALUE_HEADS)),
            "beta": rng.random((tokens, VALUE_HEADS), dtype=np.float32),
            "state": normal(1, VALUE_HEADS, DIM, DIM) * np.float32(0.1),
        }
        elements = tokens * (2 * KEY_HEADS + 2 * VALUE_HEADS) * DIM
        self.flops = 6 * tokens * self.given["state"].size
        self.bytes = 4 * (2 * self.given["state"].size + (elements if tokens > 1 else 0))

    def node(self):
        given = self.given
        inputs = [(name, given[name]) for name in ("query", "key", "value")]
        inputs += [("cu_seqlens", offsets([self.count])), ("decay", given["decay"])]
        inputs += [("beta", given["beta"]), ("initial_state", given["state"])]
        outputs = [
            ("output", np.float32, given["value"].shape),
            ("final_state", np.float32, given["state"].shape),
        ]
        return Node("GatedDeltaNet", inputs, outputs)

    def theirs(self, ggml):
        """A run of ggml, and its output in our order of heads."""
        given, ours_of = self.given, np.argsort(THEIRS)  # our head of each of theirs
        tensors = [ggml.tensor(given[name][None]) for name in ("query", "key")]
        tensors.append(ggml.tensor(given["value"][None, :, ours_of]))
        tensors += [ggml.tensor(given[name][None, :, ours_of, None]) for name in ("decay", "beta")]
        tensors.append(ggml.tensor(given["state"][:, ours_of]))
        result = ggml.gated_delta_net(ggml.context, *tensors, 1)
        # Outputs come first in the result, the state behind them.
        run, output = ggml.run_of(result, (self.count, VALUE_HEADS, DIM))
        return run, lambda: output[:, THEIRS]


class Convolution:
    name = "varlen_causal_conv"
    shape = f"{CHANNELS} channels, width {WIDTH}, silu"
    short_of = "no bias, no state"
    tokens = (1, 8, 256)

    def __init__(self, tokens):
        self.count, rng = tokens, np.random.default_rng(0)
        self.input = rng.standard_normal((tokens, CHANNELS), np.float32)
        self.weight = rng.standard_normal((CHANNELS, 1, WIDTH), np.float32)
        self.state = rng.standard_normal((1, CHANNELS, WIDTH - 1), np.float32)
        self.flops = 2 * WIDTH * self.input.size
        self.bytes = 4 * (2 * self.input.size + self.weight.size + 2 * self.state.size)

    def node(self):
        inputs = [("input", self.input), ("weight", self.weight)]
        inputs += [("cumulative_sequence_length", offsets([self.count])), None]
        inputs += [("initial_state", self.state)]
        outputs = [
            ("output", np.float32, self.input.shape),
            ("final_state", np.float32, self.state.shape),
        ]
        return Node("VarlenCausalConvWithState", inputs, outputs, {"activation": "silu"})

    def theirs(self, ggml):
        joined = np.concatenate([self.state, self.input.T[None]], axis=2)
        samples, weight = ggml.tensor(joined), ggml.tensor(self.weight[:, 0])
        result = ggml.silu(ggml.context, ggml.ssm_conv(ggml.context, samples, weight))
        run, output = ggml.run_of(result, self.input.shape)
        return run, lambda: output


OPERATORS = {kind.name: kind for kind in (GatedDeltaNet, Convolution)}


def check(name, ours, theirs):
    """Raises when the results differ: a wrong result has no speed."""
    error = float(np.abs(ours - theirs).max() / np.abs(ours).max())
    if not error < 1e-4:
        raise SystemExit(f"ggml's {name} differs from ours by {error:.1e}: not timed")


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


def measure(problem, threads, seconds):
    ours, our_output = bound_run(problem.node(), threads)
    theirs, their_output = problem.theirs(Ggml(threads))
    ours()
    theirs()
    check(problem.name, our_output, their_output())
    clock = time.thread_time if threads == 1 else time.perf_counter
    our_time, their_time = time_in_turns([ours, theirs], seconds, clock)
    return {
        "call": f"{problem.count} token" + ("s" if problem.count > 1 else ""),
        "flops": problem.flops,
        "bytes": problem.bytes,
        "ours": our_time,
        "theirs": their_time,
        "ratio": their_time["median_us"] / our_time["median_us"],
    }


def report(names, threads, seconds):
    operators = [
        {
            "operator": kind.name,
            "model": MODEL,
            "shape": f"{kind.shape}; {kind.short_of}",
            "type": "float32",
            "results": [measure(kind(tokens), threads, seconds) for tokens in kind.tokens],
        }
        for kind in map(OPERATORS.get, names)
    ]
    return {"name": f"ggml {Ggml(1).version} (xllamacpp)", "operators": operators}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="per call (default 0.5)")
    parser.add_argument("--only", choices=OPERATORS, help="the operator to time (default all)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else OPERATORS
    figures = report(names, arguments.threads, arguments.seconds)
    if arguments.json:
        print(json.dumps(figures))
        return
    for operator in figures["operators"]:
        print(f"{operator['operator']}: {operator['shape']} ({operator['model']}), float32\n")
        print(f"| tokens | this library us | {figures['name']} us | ratio |\n|---|---|---|---|")
        for row in operator["results"]:
            ours, theirs = row["ours"]["median_us"], row["theirs"]["median_us"]
            print(f"| {row['call']} | {ours:.1f} | {theirs:.1f} | {row['ratio']:.1f}x |")
        print()


if __name__ == "__main__":
    main()
