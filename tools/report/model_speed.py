"""Tokens per second of a dense model package in ONNX Runtime GenAI, with this library and without.

    .venv/bin/python tools/report/model_speed.py PACKAGE [--prompt 512] [--tokens 64] [--json FILE]

PACKAGE is a folder as tools/package/dense_packages.py makes them. Both sides are the same package
in one process, the library in the configuration of one; a prompt and a greedy continuation of it
are timed in rounds that take turns. Each side then runs once more under ONNX Runtime's profiler, in
a process of its own, for the part of the operators' time that the recurrence and its convolution
take. The tokens of both are compared. One thread is timed by the processor time that it used, which
other programs disturb less; more by the clock on the wall. Needs nothing that scripts/setup.sh does
not install.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import onnxruntime_genai
from tables import OPERATORS

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/release/lib/libdeltaworks_onnxruntime.so"
PROGRAM = ROOT / "build/release/bin/deltaworks"
SIDES = ("stock", "ours")
PHASES = ("prefill", "decode")
# Of the logits, of their largest: in int4 ONNX Runtime rounds activations to 8 bits, which makes
# much of a last bit; float32 agrees to 1e-6.
ALLOWED_DIFFERENCE = 5e-2


def say(text):
    print(text, file=sys.stderr, flush=True)


def copy_of(package, target, threads, library, profile=None):
    """The package with other session options. Weights are linked, not copied: they take gigabytes,
    and ONNX Runtime refuses symbolic links out of the model's folder."""
    target.mkdir()
    config = json.loads((package / "genai_config.json").read_text())
    options = config["model"]["decoder"]["session_options"]
    options["intra_op_num_threads"] = threads
    for file in package.iterdir():
        if file.name.startswith("model.onnx"):
            os.link(file, target / file.name)
    if library:
        shutil.copyfile(library, target / library.name)
        options["custom_ops_library"] = library.name
    if profile:
        options["enable_profiling"] = str(profile)
    (target / "genai_config.json").write_text(json.dumps(config))
    return target


def prompt_of(package, tokens):
    """Random tokens, the same each time; none is special."""
    vocabulary = json.loads((package / "genai_config.json").read_text())["model"]["vocab_size"]
    return np.random.default_rng(0).integers(3, min(vocabulary, 256), (1, tokens)).astype(np.int32)


def generate(model, prompt, tokens, clock=time.perf_counter):
    """Seconds of the prompt, seconds of each further token, the tokens, the prompt's logits."""
    parameters = onnxruntime_genai.GeneratorParams(model)
    length = prompt.shape[1] + tokens
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    start = clock()
    generator.append_tokens(prompt)
    logits = np.array(generator.get_logits()).reshape(-1)
    generator.generate_next_token()  # chosen from those: no run of the model
    seconds = [clock() - start]
    while not generator.is_done():
        start = clock()
        generator.generate_next_token()
        seconds.append(clock() - start)
    made = list(map(int, generator.get_sequence(0)))[prompt.shape[1] :]
    return seconds[0], seconds[1:], made, logits


def rate(tokens, seconds):
    """Tokens per second: the median, and the quartiles' distance as a part of it."""
    low, median, high = (
        statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    )
    return {"tokens_per_second": tokens / median, "spread": (high - low) / median}


def speeds(package, arguments, folder):
    prompt = prompt_of(package, arguments.prompt)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    models, samples = {}, {side: ([], []) for side in SIDES}
    texts, logits = {}, {}
    for side in SIDES:
        say(f"loading {package.name}, {side}")
        library = arguments.library if side == "ours" else None
        models[side] = onnxruntime_genai.Model(
            str(copy_of(package, folder / side, arguments.threads, library))
        )
    for turn in range(arguments.rounds + 1):  # the first warms up
        for side in SIDES:
            first, others, texts[side], logits[side] = generate(
                models[side], prompt, arguments.tokens, clock
            )
            say(
                f"{f'round {turn} of {arguments.rounds}' if turn else 'warm-up'}, {side}: "
                f"{arguments.prompt / first:.1f} tokens/s of the prompt, "
                f"{len(others) / sum(others):.1f} after it"
            )
            if turn:
                samples[side][0].append(first)
                samples[side][1].extend(others)
    result = {
        side: {
            "prefill": rate(arguments.prompt, prefill),
            "decode": rate(1, decode),
        }
        for side, (prefill, decode) in samples.items()
    }
    difference = np.abs(logits["ours"] - logits["stock"]).max() / np.abs(logits["stock"]).max()
    return result | {
        "equal_tokens": texts["stock"] == texts["ours"],
        "logit_difference": float(difference),
    }


def shares(events):
    """By phase the part of the nodes' time that each operator takes. Runs of the session come in
    order: the prompt's, then one for each token."""
    runs = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"] == "model_run"
    )
    totals = {phase: {} for phase in PHASES}
    for event in events:
        operator = event.get("args", {}).get("op_name")
        if event["cat"] != "Node" or not operator or not event["name"].endswith("_kernel_time"):
            continue
        index = sum(start <= event["ts"] for start, _ in runs) - 1
        total = totals["decode" if index > 0 else "prefill"]
        total[operator] = total.get(operator, 0) + event["dur"]
    return {
        phase: {
            name: duration / max(1, sum(total.values()))
            for name, duration in sorted(total.items(), key=lambda item: -item[1])
        }
        for phase, total in totals.items()
    }


def profiled_shares(package, side, arguments, folder):
    """In a process of its own, since a session writes its profile when it ends."""
    say(f"profiling {package.name}, {side}")
    library = arguments.library if side == "ours" else None
    prefix = folder / f"profile-{side}"
    copy = copy_of(package, folder / f"profiled-{side}", arguments.threads, library, prefix)
    command = [sys.executable, __file__, copy, "--only-run", "--prompt", arguments.prompt]
    subprocess.run([*map(str, command), "--tokens", str(min(arguments.tokens, 16))], check=True)
    (profile,) = folder.glob(f"{prefix.name}*.json")
    return shares(json.loads(profile.read_text()))


def machine():
    info = json.loads(subprocess.run([PROGRAM, "info", "--json"], stdout=subprocess.PIPE).stdout)
    return {
        "processor": info["processor"]["name"],
        "cores": info["processor"]["threads"],
        "instruction_set": info["processor"]["used"],
        "version": info["version"],
        "onnxruntime": onnxruntime.__version__,
        "onnxruntime_genai": onnxruntime_genai.__version__,
    }


def summary(report):
    lines = [
        f"{report['package']}: {report['prompt']} tokens of a prompt, {report['tokens']} after it; "
        f"{report['processor']}, {report['instruction_set']}, {report['threads']} thread(s)",
        f"greedy tokens are {'the same' if report['equal_tokens'] else 'different'}; the prompt's "
        f"logits differ by {report['logit_difference']:.1e} of the largest",
    ]
    for phase in PHASES:
        stock, ours = (report[side][phase]["tokens_per_second"] for side in SIDES)
        before, after = (
            sum(report[side]["shares"][phase].get(name, 0) for name in OPERATORS) for side in SIDES
        )
        lines.append(
            f"{phase:8} {stock:8.1f} tokens/s without, {ours:8.1f} with the library: "
            f"{ours / stock:.2f}x; its operators took {before:.0%} of the time, take {after:.0%}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens after it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--library", type=Path, default=LIBRARY)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--only-run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    package = arguments.package.resolve()
    if not (package / "genai_config.json").is_file():
        parser.error(
            f"{package} has no genai_config.json: tools/package/dense_packages.py makes them"
        )
    if min(arguments.prompt, arguments.tokens - 1, arguments.threads, arguments.rounds) < 1:
        parser.error("--prompt, --threads and --rounds are 1 or more, --tokens 2 or more")
    if arguments.only_run:
        model = onnxruntime_genai.Model(str(package))
        generate(model, prompt_of(package, arguments.prompt), arguments.tokens)
        return 0
    with tempfile.TemporaryDirectory(dir=package.parent, prefix=".model_speed-") as temporary:
        folder = Path(temporary)
        report = speeds(package, arguments, folder)
        for side in SIDES:
            report[side]["shares"] = profiled_shares(package, side, arguments, folder)
    report |= machine() | {
        "package": f"{package.parent.name}, {package.name}",
        "prompt": arguments.prompt,
        "tokens": arguments.tokens,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
    }
    print(summary(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["logit_difference"] < ALLOWED_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
