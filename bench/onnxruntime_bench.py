#!/usr/bin/env python3
"""Times GatedDeltaNet, VarlenCausalConvWithState and their dense siblings of this library against
ONNX Runtime's own kernels, in one process, on one thread: rounds take turns, memory is bound,
medians are compared. The clock is the thread's processor time, which other programs disturb less
than the wall's.

Usage: .venv/bin/python bench/onnxruntime_bench.py [--seconds 1.0] [--only OPERATOR] [--json FILE]
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "onnxruntime/tests"))
from support import LIBRARY, Node, bind, offsets, session  # noqa: E402

# Heads of Qwen3.5 27B: 16 key heads, 48 value heads of 128 x 128, 10240 convolution channels.
KEY_HEADS, VALUE_HEADS, DIM, CHANNELS, WIDTH = 16, 48, 128, 10240, 4
# Of Qwen3.5 9B, for the dense pair.
DENSE_HEADS, DENSE_CHANNELS = 32, 8192
CONSTANTS = ("weight", "bias")
WANTED = {  # what is asked of this library: ratio by operator and tokens
    ("GatedDeltaNet", 1): 10,
    ("GatedDeltaNet", 8): 10,
    ("GatedDeltaNet", 1024): 10,
    ("VarlenCausalConvWithState", 1): 20,
    ("VarlenCausalConvWithState", 1024): 10,
    ("LinearAttention", 1): 2,
    ("LinearAttention", 16): 2,
    ("LinearAttention", 1024): 2,
    ("CausalConvWithState", 1): 2,
    ("CausalConvWithState", 1024): 2,
}


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 0.5


def gated_delta_net(tokens, capacity=0):
    state = normal(1, VALUE_HEADS, DIM, DIM)
    inputs = [
        ("query", normal(tokens, KEY_HEADS, DIM)),
        ("key", normal(tokens, KEY_HEADS, DIM)),
        ("value", normal(tokens, VALUE_HEADS, DIM)),
        ("cu_seqlens", offsets([tokens])),
        ("decay", normal(tokens, VALUE_HEADS)),
        ("beta", normal(tokens, VALUE_HEADS)),
        ("initial_state", state),
        ("a_log", normal(VALUE_HEADS)),
        ("dt_bias", normal(VALUE_HEADS)),
    ]
    outputs = [
        ("output", np.float32, (tokens, VALUE_HEADS, DIM)),
        ("final_state", np.float32, state.shape),
    ]
    attributes = {"gate_activation": "qwen", "beta_activation": "sigmoid", "qk_l2_norm": 1}
    if capacity:
        row = capacity * (VALUE_HEADS + KEY_HEADS * DIM + VALUE_HEADS * DIM)
        inputs.append(("capture_count", np.array([capacity], np.int32)))
        outputs.append(("state_update", np.float32, (1, row)))
        attributes["state_update_capacity"] = capacity
    return Node("GatedDeltaNet", inputs, outputs, attributes)


def convolution(tokens):
    inputs = [
        ("input", normal(tokens, CHANNELS)),
        ("weight", normal(CHANNELS, 1, WIDTH)),
        ("cumulative_sequence_length", offsets([tokens])),
        ("bias", normal(CHANNELS)),
        ("initial_state", normal(1, CHANNELS, WIDTH - 1)),
    ]
    outputs = [
        ("output", np.float32, (tokens, CHANNELS)),
        ("final_state", np.float32, (1, CHANNELS, WIDTH - 1)),
    ]
    return Node("VarlenCausalConvWithState", inputs, outputs, {"activation": "silu"})


def linear_attention(tokens):
    state = normal(1, DENSE_HEADS, DIM, DIM)
    inputs = [
        ("query", normal(1, tokens, KEY_HEADS * DIM) * 0.1),
        ("key", normal(1, tokens, KEY_HEADS * DIM) * 0.1),
        ("value", normal(1, tokens, DENSE_HEADS * DIM)),
        ("past_state", state),
        ("decay", -np.abs(normal(1, tokens, DENSE_HEADS))),
        ("beta", np.abs(normal(1, tokens, DENSE_HEADS))),
    ]
    outputs = [
        ("output", np.float32, (1, tokens, DENSE_HEADS * DIM)),
        ("present_state", np.float32, state.shape),
    ]
    return Node(
        "LinearAttention", inputs, outputs, {"q_num_heads": KEY_HEADS, "kv_num_heads": DENSE_HEADS}
    )


def dense_convolution(tokens):
    inputs = [
        ("input", normal(1, DENSE_CHANNELS, tokens)),
        ("weight", normal(DENSE_CHANNELS, 1, WIDTH)),
        ("bias", normal(DENSE_CHANNELS)),
        ("past_state", normal(1, DENSE_CHANNELS, WIDTH - 1)),
    ]
    outputs = [
        ("output", np.float32, (1, DENSE_CHANNELS, tokens)),
        ("present_state", np.float32, (1, DENSE_CHANNELS, WIDTH - 1)),
    ]
    return Node("CausalConvWithState", inputs, outputs, {"activation": "silu"})


def aligned(array):
    """A copy that begins at a cache line, as ONNX Runtime's own allocations do."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy


def running_model(node):
    """The weights of a convolution are constants, as in exported graphs."""
    return node.model(constant=[name for name in CONSTANTS if name in node.feeds()])


def bound_run(node, library, in_place):
    running = session(running_model(node), library=library)
    feeds = {name: aligned(array) for name, array in node.feeds().items() if name not in CONSTANTS}
    binding, memory = running.io_binding(), []
    for name, array in feeds.items():
        memory.append(bind(binding, name, array, binding.bind_input))
    for name, dtype, shape in node.outputs:
        before = {"final_state": "initial_state", "present_state": "past_state"}.get(name)
        shared = in_place and before is not None
        array = feeds[before] if shared else aligned(np.zeros(shape, dtype))
        memory.append(bind(binding, name, array, binding.bind_output))
    return lambda _kept=memory: running.run_with_iobinding(binding)


def microseconds(run, repeats):
    start = time.thread_time()
    for _ in range(repeats):
        run()
    return (time.thread_time() - start) / repeats * 1e6


def check(node):
    """Raises when the two libraries' results differ: a wrong result has no speed."""
    stock, ours = (
        session(running_model(node), library=library).run(
            None, {name: array for name, array in node.feeds().items() if name not in CONSTANTS}
        )
        for library in (None, LIBRARY)
    )
    for (name, _, _), expected, actual in zip(node.outputs, stock, ours, strict=True):
        scale = max(1e-3, float(np.abs(expected).max()))
        error = float(np.abs(actual - expected).max()) / scale
        if not error < 1e-4:
            raise SystemExit(f"{node.op}: {name} differs from ONNX Runtime's by {error:.1e}")


def compare(node, seconds, in_place):
    """Medians and spreads (quartiles apart, of the median) in microseconds: stock, ours."""
    check(node)
    runs = [bound_run(node, library, in_place) for library in (None, LIBRARY)]
    once = [min(microseconds(run, 1) for _ in range(3)) for run in runs]
    repeats = [max(1, int(2e4 / time_of)) for time_of in once]  # a round lasts 20 ms or one run
    samples = [[], []]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 5:
        for side in (0, 1):
            samples[side].append(microseconds(runs[side], repeats[side]))
    result = []
    for side in samples:
        low, median, high = np.percentile(side, [25, 50, 75])
        result.append((float(median), float((high - low) / median)))
    return result


def machine():
    described = {"onnxruntime": ort.__version__}
    text = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    flags = fields.get("Flags", "").split()
    wanted = ("fma", "avx2", "avx512f", "avx512bw", "avx512_bf16", "amx_tile", "asimd", "sve")
    described["processor"] = fields.get("Model name", "unknown").strip()
    described["instruction sets"] = " ".join(flag for flag in wanted if flag in flags)
    return described


def stream_floor():
    """Microseconds to read and write one state: what no kernel of one token can undercut."""
    state = normal(VALUE_HEADS, DIM, DIM)
    other = np.zeros_like(state)
    one = np.float32(1)

    def median(target):
        return np.median(
            [microseconds(lambda: np.multiply(state, one, out=target), 5) for _ in range(40)]
        )

    return median(state), median(other)


def cases():
    """Operator, tokens, what is special, node, whether the state is updated in place."""
    for tokens in (1, 8, 1024):
        yield "GatedDeltaNet", tokens, "", gated_delta_net(tokens), False
    yield "GatedDeltaNet", 1, "state in place", gated_delta_net(1), True
    yield "GatedDeltaNet", 8, "7 captured", gated_delta_net(8, capacity=7), False
    for tokens in (1, 8, 1024):
        yield "VarlenCausalConvWithState", tokens, "", convolution(tokens), False
    for tokens in (1, 16, 1024):
        yield "LinearAttention", tokens, "", linear_attention(tokens), False
    yield "LinearAttention", 1, "state in place", linear_attention(1), True
    for tokens in (1, 2, 4, 16, 1024):
        yield "CausalConvWithState", tokens, "", dense_convolution(tokens), False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per case (default 1)")
    parser.add_argument("--only", help="the operator to time (default all)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    described = machine()
    print(*(f"{name}: {value}" for name, value in described.items()), sep="\n")
    print(f"one thread, float32, {KEY_HEADS}/{VALUE_HEADS} heads x {DIM}, {CHANNELS} channels")
    print(f"the dense pair: {KEY_HEADS}/{DENSE_HEADS} heads x {DIM}, {DENSE_CHANNELS} channels")
    in_place, apart = stream_floor()
    print(f"reading and writing one state: {in_place:.0f} us in place, {apart:.0f} us apart\n")
    print("| operator | tokens | | ONNX Runtime us | this library us | spread | ratio | wanted |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for operator, tokens, special, node, in_place in cases():
        if arguments.only not in (None, operator):
            continue
        (stock, stock_spread), (ours, spread) = compare(node, arguments.seconds, in_place)
        wanted = WANTED.get((operator, tokens))
        cells = [operator, tokens, special, f"{stock:.0f}", f"{ours:.1f}"]
        cells += [f"{stock_spread:.0%}, {spread:.0%}", f"{stock / ours:.1f}x"]
        cells.append(f"{wanted}x{', missed' if stock / ours < wanted else ''}" if wanted else "")
        print("|", " | ".join(map(str, cells)), "|", flush=True)
        case = {"operator": operator, "tokens": tokens, "special": special}
        rows.append(case | {"stock_us": stock, "ours_us": ours})
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": described, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
