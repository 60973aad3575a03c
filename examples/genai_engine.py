"""Three requests at once in ONNX Runtime GenAI's Engine on a CPU, then one with drafts of its own.

The stock Engine batches and verifies; the operators that a hybrid model needs come from
libdeltaworks_onnxruntime.so, which genai_config.json names as custom_ops_library. Any package that
deltaworks.retarget has made will do (docs/genai.md); without --model it is the demonstration model.

    .venv/bin/python examples/genai_engine.py
    .venv/bin/python examples/genai_engine.py --model FOLDER --prompt 'Once upon a time'
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
DEMO = ROOT / "models/demo"
END_OF_DOCUMENT = 256  # of the demonstration model; also begins one
MAX_DRAFTS = 7
LIBRARY = "libdeltaworks_onnxruntime.so"


def lookup(tokens: list[int], limit: int) -> list[int]:
    """What followed the longest earlier occurrence of the last tokens: at least 2, at most 16."""
    for length in range(min(16, len(tokens) - 1), 1, -1):
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                return tokens[start + length : start + length + min(limit, length)]
    return []


def generate(
    engine: og.Engine, prompts: list[list[int]], max_tokens: int, *, drafts: bool = False
) -> tuple[list[list[int]], int]:
    """Greedy continuations of all prompts in one batch, and the steps that the Engine took."""
    texts = [list(prompt) for prompt in prompts]
    requests = []
    for text in texts:
        request = engine.create_request()
        options = og.TurnOptions(request)
        options.set_do_sample(False)
        options.set_max_generated_tokens(max_tokens)
        options.set_min_generated_tokens(0)  # drafts are not looked at before this many tokens
        request.begin_turn(np.array(text, np.int32), options)
        requests.append(request)
    limit = min(MAX_DRAFTS, engine.max_draft_tokens_per_proposal())  # 0: the model captures nothing
    events = engine.create_event_buffer(4 * (MAX_DRAFTS + 1) * len(requests))
    steps = 0
    while engine.has_pending_requests():
        for request, text, prompt in zip(requests, texts, prompts, strict=True):
            left = max_tokens - (len(text) - len(prompt)) - 1  # the step itself yields one token
            has_begun = len(text) > len(prompt)
            proposal = lookup(text, min(limit, left)) if drafts and has_begun else []
            if proposal:
                request.set_draft_tokens(np.array(proposal, np.int32))
        for event in engine.run(events):
            if event.flags & og.EngineEventFlags.FAILED:
                raise RuntimeError(f"a request failed: error {event.error_code}")
            if event.flags & og.EngineEventFlags.TOKEN:
                texts[requests.index(event.request)].append(int(event.token))
            if event.flags & og.EngineEventFlags.TURN_FINISHED:
                event.request.close()  # gives its place in the batch and its cache to others
        steps += 1
    return [text[len(p) :] for text, p in zip(texts, prompts, strict=True)], steps


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def configuration_of(folder: pathlib.Path) -> dict:
    """The "model" of genai_config.json, where the Engine can run it on a CPU."""
    path = folder / "genai_config.json"
    if not path.exists():
        sys.exit(f"{folder} has no genai_config.json: name a model's folder with --model")
    model = json.loads(path.read_text())["model"]
    decoder = model["decoder"]
    if "block_table" not in decoder.get("inputs", {}):
        sys.exit(
            f"{folder} has no paged cache, as the Engine needs it: build it with -e cuda and "
            "use_paged_attention=true and retarget it (docs/genai.md), or run it in GenAI's "
            "Generator (docs/onnxruntime.md)"
        )
    if decoder.get("session_options", {}).get("provider_options"):
        sys.exit(f"{folder} is not for a CPU: python -m deltaworks.retarget {folder} TARGET")
    return model


def load(folder: pathlib.Path, library_folder: pathlib.Path) -> og.Model:
    if not (folder / LIBRARY).exists():  # GenAI looks for it there, or in the current folder
        if not (library_folder / LIBRARY).exists():
            sys.exit(f"{library_folder / LIBRARY} is missing: run scripts/setup.sh")
        os.chdir(library_folder)
    return og.Model(str(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=DEMO)
    parser.add_argument(
        "--library-folder",
        type=pathlib.Path,
        default=ROOT / "build/release/lib",
        help="of the library, where the model's folder has it not",
    )
    parser.add_argument("--prompt", action="append", help="instead of the three built in; repeats")
    parser.add_argument(
        "--begin",
        type=int,
        help=f"token before each prompt (default: none, and {END_OF_DOCUMENT} for models/demo)",
    )
    parser.add_argument("--max-tokens", type=positive, default=120)
    parser.add_argument("--json", action="store_true", help="tokens and steps for programs")
    args = parser.parse_args()
    configuration = configuration_of(args.model)
    vocabulary = configuration["vocab_size"]
    if args.begin is not None and not 0 <= args.begin < vocabulary:
        parser.error(f"--begin is {args.begin}, but the tokens are 0 to {vocabulary - 1}")
    has_drafter = "dflash2" in configuration or "mtp" in configuration
    model = load(args.model.resolve(), args.library_folder)
    engine, tokenizer = og.Engine(model), og.Tokenizer(model)
    is_demo = args.model.resolve() == DEMO
    first = END_OF_DOCUMENT if args.begin is None and is_demo else args.begin
    begin = [] if first is None else [first]
    texts = args.prompt or list(PROMPTS)
    prompts = [begin + [int(token) for token in tokenizer.encode(text)] for text in texts]

    batch, batch_steps = generate(engine, prompts, args.max_tokens)
    stats = engine.get_speculative_stats()  # of the model's own drafter, where it has one
    drafted, drafted_steps = generate(engine, prompts[:1], args.max_tokens, drafts=True)
    if args.json:
        result = {
            "batch": batch,
            "batch_steps": batch_steps,
            "stats": stats,
            "drafted": drafted[0],
            "drafted_steps": drafted_steps,
        }
        print(json.dumps(result))
        return
    for text, tokens in zip(texts, batch, strict=True):
        print(f"--- {text}{tokenizer.decode(np.array(tokens, np.int32))}")
    same = "the same tokens" if drafted[0] == batch[0] else "OTHER TOKENS"
    requests = "1 request" if len(prompts) == 1 else f"{len(prompts)} requests at once"
    drafter = " with the package's drafter" if has_drafter else ""
    drafts = "its text's drafts before the drafter's" if has_drafter else "drafts"
    print(f"{requests}{drafter}: {batch_steps} steps")
    print(f"the first one with {drafts}: {drafted_steps} steps, {same}")


if __name__ == "__main__":
    main()
