"""Times of flash-linear-attention at the shapes of cuda_bench, added to the report that it wrote,
and with --results errors of both against float64.

    cuda_bench REPORT.json; cuda_bench --results FOLDER; fla_bench.py REPORT.json --results FOLDER

Needs torch, triton and fla-core. CUDA graphs, medians of replays, states cold, as there. fla gets g
and beta ready made, normalises queries and keys inside, and is tuned for every shape in bfloat16,
since its own key leaves the length out; in float16 it takes the same configurations. Tuning takes a
minute on 16 cores, mostly to compile; --choices FILE keeps what was chosen, for the next time.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import tempfile
import time

import torch
import triton
from fla.modules.causal_conv1d import causal_conv1d, causal_conv1d_update
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla_choices import HALF, Choices
from fla_errors import add_errors

KEY_HEADS, DIM, WIDTH = 16, 128, 4
COLD_BYTES = 400 << 20
PROMPTS = {
    **{f"1 x {n}": [n] for n in (64, 256, 1024, 2048, 8192)},
    "4 x 2048": [2048] * 4,
    "8 x 8192": [8192] * 8,
    "8 ragged": [2048, 64, 1500, 900, 1, 1679, 1000, 1000],
}
STEPS = [(b, 1) for b in (1, 8, 64, 256)] + [(b, t) for t in (4, 8, 16) for b in (1, 64)]
DTYPES = {"": torch.bfloat16, HALF: torch.float16}


def draw(*shape, dtype=torch.float32, deviation=1.0):
    return torch.randn(*shape, device="cuda").mul_(deviation).to(dtype)


def sets_of(size):
    return max(2, min(64, COLD_BYTES // size))


def offsets_of(lengths):
    """None for equal lengths, which fla takes as a batch."""
    if len(set(lengths)) == 1:
        return None
    return torch.tensor([0, *lengths], device="cuda").cumsum(0)


def operands(batch, length, heads, dtype):
    q, k = (draw(batch, length, KEY_HEADS, DIM, dtype=dtype) for _ in range(2))
    v = draw(batch, length, heads, DIM, dtype=dtype)
    g = torch.nn.functional.logsigmoid(draw(batch, length, heads))
    return q, k, v, g, draw(batch, length, heads).sigmoid()


def prompt(lengths, heads, dtype):
    """A call over a set of states, and how many sets there are."""
    offsets, tokens = offsets_of(lengths), sum(lengths)
    shape = (1, tokens) if offsets is not None else (len(lengths), lengths[0])
    q, k, v, g, beta = operands(*shape, heads, dtype)
    size = 8 * len(lengths) * heads * DIM * DIM
    size += tokens * (4 * (KEY_HEADS + heads) * DIM + 8 * heads)
    state = draw(sets_of(size), len(lengths), heads, DIM, DIM, deviation=0.1)

    def call(i):
        chunk_gated_delta_rule(
            q,
            k,
            v,
            g,
            beta,
            initial_state=state[i],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=offsets,
        )

    return call, len(state)


def step(batch, length, heads, dtype):
    q, k, v, g, beta = operands(batch, length, heads, dtype)
    state = draw(sets_of(8 * batch * heads * DIM * DIM), batch, heads, DIM, DIM, deviation=0.1)

    def call(i):
        fused_recurrent_gated_delta_rule(
            q,
            k,
            v,
            g,
            beta=beta,
            initial_state=state[i],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )

    return call, len(state)


def conv(lengths, channels, dtype):
    offsets, tokens = offsets_of(lengths), sum(lengths)
    shape = (1, tokens) if offsets is not None else (len(lengths), lengths[0])
    size = (2 * tokens + 2 * len(lengths) * (WIDTH - 1) + WIDTH) * channels * dtype.itemsize
    sets = sets_of(size)
    x = draw(sets, *shape, channels, dtype=dtype)
    weight = draw(channels, WIDTH, dtype=dtype, deviation=0.5)
    state = draw(sets, len(lengths), channels, WIDTH, dtype=dtype)

    def update(i):
        causal_conv1d_update(x[i], state[i], weight=weight, activation="silu")

    def call(i):
        causal_conv1d(
            x[i],
            weight,
            initial_state=state[i],
            output_final_state=True,
            activation="silu",
            cu_seqlens=offsets,
        )

    return update if shape[1] == 1 else call, sets


def graph_us(call, sets, nodes, repetitions):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for node in range(nodes):
            call(node % sets)
    times = []
    for i in range(-2, repetitions):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 0:
            times.append(begin.elapsed_time(end) * 1000)
    return sorted(times)[repetitions // 2] / nodes


def measure(call, sets):
    for i in range(2):  # the first one tunes
        call(i)
    torch.cuda.synchronize()
    first = graph_us(call, sets, sets, 1)
    return graph_us(call, sets, max(1, round(3000 / (first * sets))) * sets, 13)


def prompts(suffix):
    """Operator and shape as cuda_bench names them, and what makes a call."""
    for heads in (32, 48):
        for name, lengths in PROMPTS.items():
            shape = f"{name}, {heads} heads{suffix}"
            yield "gated_delta_net", shape, prompt, (lengths, heads, DTYPES[suffix])


def steps():
    for heads in (32, 48):
        for batch, length in STEPS:
            shape = f"{batch} x {length}, {heads} heads"
            yield "gated_delta_net", shape, step, (batch, length, heads, torch.bfloat16)


def convolutions():
    batches = {f"{batch}x1": [1] * batch for batch in (1, 8, 64, 256)}
    batches |= {name.replace(" x ", "x"): lengths for name, lengths in PROMPTS.items()}
    del batches["8x8192"]
    for channels in (8192, 10240):
        for name, lengths in batches.items():
            shape = f"{name} x {channels} bfloat16"
            yield "varlen_causal_conv", shape, conv, (lengths, channels, torch.bfloat16)


def groups():
    """Cases that are compiled and timed one after the other, with shapes whose kernels are those of
    all: first those that have almost all of them."""
    names = (("1 x 64", "8 ragged"), ("4 x 2048", "8 x 8192"))
    shapes = [[f"{name}, {heads} heads" for name in row for heads in (32, 48)] for row in names]
    yield [*prompts(""), *steps()], shapes
    yield [*prompts(HALF)], [[shape + HALF for shape in row] for row in shapes]
    channels, names = (8192, 10240), ("1x1", "1x64", "8 ragged")
    yield [*convolutions()], [[f"{name} x {c} bfloat16" for name in names for c in channels]]


def compile_call(path, case, part, parts):
    """Fills Triton's cache on disk, in a process of its own: a call with a share of each kernel's
    configurations, or with those that are known. Sequences are short, which changes no kernel."""
    _, shape, build, arguments = case
    Choices(path).apply(shape, part, parts)
    if build is not step:
        arguments = ([min(n, 256) for n in arguments[0]], *arguments[1:])
    with torch.no_grad():
        build(*arguments)[0](0)
    torch.cuda.empty_cache()


def compile_all(pool, choices, cases, shapes):
    begin, parts = time.monotonic(), 4  # which 16 processes share
    if all(choices.knows(case[1]) for case in cases):
        shapes, parts = [[case[1] for case in cases]], 1
    for row in shapes:
        chosen = [case for case in cases if case[1] in row]
        tasks = [(choices.path, case, part, parts) for case in chosen for part in range(parts)]
        pool.starmap(compile_call, tasks, chunksize=1)
    print(f"fla: compiled in {time.monotonic() - begin:.0f} s", flush=True)


def matmul_flop_per_us(dtype):
    a, b = (draw(8192, 8192, dtype=dtype) for _ in range(2))
    ms = triton.testing.do_bench(lambda: a @ b, warmup=5, rep=10, return_mode="median")
    return 2 * 8192**3 / (ms * 1000)


def add_times(report, cases, rates, choices):
    rows = {(row["op"], row["shape"]): row for row in report["rows"]}
    for op, shape, build, arguments in cases:
        row = rows[op, shape]
        row["floor_us"] = max(row["floor_us"], row["flop"] / rates[arguments[-1]])
        choices.apply(shape)
        row["fla_us"] = measure(*build(*arguments))
        choices.keep(shape)
        torch.cuda.empty_cache()
        us, fla, floor = row["us"], row["fla_us"], row["floor_us"]
        print(
            f"{op:20} {shape:30} {us:9.2f} us  fla {fla:9.2f} us = {fla / us:5.2f}x  "
            f"floor {floor:8.2f} us = {us / floor:5.2f}x",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="what cuda_bench wrote")
    parser.add_argument("--results", help="folder of cuda_bench --results")
    parser.add_argument("--seconds", type=float, default=600, help="starts nothing after so long")
    parser.add_argument("--choices", help="file of fla's configurations, read and written")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    with open(options.report) as file:
        report = json.load(file)
    report["fla"] = f"fla-core {importlib.metadata.version('fla-core')}"
    rates = {dtype: matmul_flop_per_us(dtype) for dtype in DTYPES.values()}
    report["matmul_tflop_per_s"] = {str(dtype): rate * 1e-6 for dtype, rate in rates.items()}
    try:
        with tempfile.TemporaryDirectory() as folder:
            choices = Choices(options.choices or f"{folder}/choices.json")
            with multiprocessing.get_context("spawn").Pool(min(16, os.cpu_count())) as pool:
                for cases, shapes in groups():
                    if time.monotonic() > deadline:
                        print("fla: out of time")
                        break
                    compile_all(pool, choices, cases, shapes)
                    add_times(report, cases, rates, choices)
            if options.results:
                choices.apply("8 ragged, 32 heads")
                add_errors(report, options.results)
    finally:
        with open(options.report, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    with torch.no_grad():
        main()
