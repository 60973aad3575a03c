"""Three requests at once in ONNX Runtime GenAI's Engine on a CPU, then one with drafts.

The stock Engine batches and verifies; the operators that a hybrid model needs come from
libdeltaworks_onnxruntime.so, which genai_config.json names as custom_ops_library.

    .venv/bin/python examples/genai_engine.py
    .venv/bin/python examples/genai_engine.py --prompt $'[play]\\nHAMLET.' --max-tokens 80
"""

import argparse
import json
import os
import pathlib
import sys

import numpy as np
import onnxruntime_genai as og

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPTS = (
    "[tale]\nOnce upon a time there was",
    "[scripture]\n1 And it came to pass",
    "[dictionary]\nlantern (noun): ",
)
END_OF_DOCUMENT = 256  # also begins one; smaller ids are bytes
MAX_DRAFTS = 7


def lookup(tokens: list[int], limit: int) -> list[int]:
    """What followed the longest earlier occurrence of the last tokens: at least 2, at most 16."""
    for length in range(min(16, len(tokens) - 1), 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                return tokens[start + length : start + length + min(limit, length)]
    return []


def generate(
    engine: og.Engine, prompts: list[str], max_tokens: int, *, drafts: bool = False
) -> tuple[list[list[int]], int]:
    """Greedy continuations of all prompts in one batch, and the steps that the Engine took."""
    texts = [[END_OF_DOCUMENT, *prompt.encode()] for prompt in prompts]
    starts = [len(text) for text in texts]
    requests = []
    for text in texts:
        request = engine.create_request()
        options = og.TurnOptions(request)
        options.set_do_sample(False)
        options.set_max_generated_tokens(max_tokens)
        options.set_min_generated_tokens(0)  # drafts are not looked at before this many tokens
        request.begin_turn(np.array(text, np.int32), options)
        requests.append(request)
    events = engine.create_event_buffer(4 * MAX_DRAFTS * len(requests))
    steps = 0
    while engine.has_pending_requests():
        for request, text, start in zip(requests, texts, starts, strict=True):
            left = max_tokens - (len(text) - start) - 1  # the step itself yields one token
            proposal = lookup(text, min(MAX_DRAFTS, left)) if drafts and len(text) > start else []
            if proposal:
                request.set_draft_tokens(np.array(proposal, np.int32))
        for event in engine.run(events):
            index = requests.index(event.request)
            if event.flags & og.EngineEventFlags.FAILED:
                raise RuntimeError(f"request {index} failed: error {event.error_code}")
            if event.flags & og.EngineEventFlags.TOKEN:
                texts[index].append(int(event.token))
        steps += 1
    return [text[start:] for text, start in zip(texts, starts, strict=True)], steps


def text_of(tokens: list[int]) -> str:
    return bytes(t for t in tokens if t < END_OF_DOCUMENT).decode(errors="replace")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/demo")
    parser.add_argument("--library-folder", type=pathlib.Path, default=ROOT / "build/release/lib")
    parser.add_argument("--prompt", action="append", help="instead of the three built in; repeats")
    parser.add_argument("--max-tokens", type=positive, default=120)
    parser.add_argument("--json", action="store_true", help="tokens and steps for programs")
    args = parser.parse_args()
    library = args.library_folder / "libdeltaworks_onnxruntime.so"
    if not library.exists():
        sys.exit(f"{library} is missing: run scripts/setup.sh, or name its folder")
    model_folder = args.model.resolve()
    if not (model_folder / "genai_config.json").exists():
        sys.exit(f"{model_folder} has no genai_config.json: name a model's folder with --model")
    os.chdir(args.library_folder)  # GenAI looks for the library here or in the model's folder
    engine = og.Engine(og.Model(str(model_folder)))

    prompts = args.prompt or list(PROMPTS)
    batch, batch_steps = generate(engine, prompts, args.max_tokens)
    drafted, drafted_steps = generate(engine, prompts[:1], args.max_tokens, drafts=True)
    if args.json:
        result = {
            "batch": batch,
            "batch_steps": batch_steps,
            "drafted": drafted[0],
            "drafted_steps": drafted_steps,
        }
        print(json.dumps(result))
        return
    for prompt, tokens in zip(prompts, batch, strict=True):
        print(f"--- {prompt}{text_of(tokens)}")
    same = "the same bytes" if drafted[0] == batch[0] else "OTHER BYTES"
    print(f"{len(prompts)} requests at once: {batch_steps} steps")
    print(f"the first one with drafts: {drafted_steps} steps, {same}")


if __name__ == "__main__":
    main()
