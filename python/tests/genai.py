"""Packages of the model builder, and requests to GenAI's Engine."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx

# tools/package/tiny_packages.py made them; no file of the builder is changed. scripts/test_genai.sh
# makes them anew and names that folder.
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(os.environ.get("DELTAWORKS_PACKAGES", ROOT / "onnxruntime/tests/data"))
MAX_DRAFTS = 7


def expected(kind):
    """Prompts, and what transformers writes after each."""
    return json.loads((PACKAGES / f"{kind}.json").read_text())


def copy_of(name, folder):
    shutil.copytree(PACKAGES / name, folder)
    return folder


def change_graph(path, change):
    model = onnx.load(path, load_external_data=False)
    change(model.graph)
    path.write_bytes(model.SerializeToString())


def change_configuration(folder, change):
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def without_drafter(folder):
    change_configuration(folder, lambda config: config["model"].pop("dflash2"))


def decode(engine, texts, drafts=None, every=0):
    """Greedy tokens after the prompts of `texts`, in one batch, and the Engine's steps.

    drafts  what to propose for text i after `done` tokens: drafts(i, done)
    every   steps between the requests' arrivals; 0: all at once
    """
    import onnxruntime_genai as og

    events = engine.create_event_buffer(4 * (MAX_DRAFTS + 1) * len(texts))
    requests, results, steps = [], [[] for _ in texts], 0
    while engine.has_pending_requests() or len(requests) < len(texts):
        while len(requests) < len(texts) and steps >= every * len(requests):
            text = texts[len(requests)]
            request = engine.create_request()
            options = og.TurnOptions(request)
            options.set_do_sample(False)
            options.set_max_generated_tokens(len(text["tokens"]))
            options.set_min_generated_tokens(0)  # drafts are not looked at before this many
            request.begin_turn(np.array(text["prompt"], np.int32), options)
            requests.append(request)
        for index, request in enumerate(requests):
            done = len(results[index])
            left = len(texts[index]["tokens"]) - done - 1  # the step itself gives a token
            if drafts is not None and done > 0 and left > 0:
                proposal = drafts(index, done)[: min(left, MAX_DRAFTS)]
                request.set_draft_tokens(np.array(proposal, np.int32))
        for event in engine.run(events):
            assert not event.flags & og.EngineEventFlags.FAILED, event.error_code
            if event.flags & og.EngineEventFlags.TOKEN:
                results[requests.index(event.request)].append(int(event.token))
            if event.flags & og.EngineEventFlags.TURN_FINISHED:
                event.request.close()  # else it keeps its place in the batch
        steps += 1
        assert steps < 1000, f"stalled at {[len(result) for result in results]}"
    return results, steps
