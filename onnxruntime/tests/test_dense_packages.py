"""Packages for the CPU as the model builder makes them decode to the same tokens with this library.

tools/package/tiny_packages.py made those in data/dense; no file of the builder is changed."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from support import LIBRARY

onnxruntime_genai = pytest.importorskip(
    "onnxruntime_genai", reason="it is installed beside the newest ONNX Runtime only"
)

DATA = Path(os.environ.get("DELTAWORKS_PACKAGES", Path(__file__).parent / "data"))
PRECISIONS = ["float32", "int4"]
DENSE = ("LinearAttention", "CausalConvWithState")
PROMPTS = [[10, 20, 30, 40, 50, 60, 70, 80], [7], list(range(3, 131))]
NEW_TOKENS = 100


@pytest.fixture(params=PRECISIONS)
def package(request, tmp_path):
    """Two copies: as the builder left it, and the same with the library in genai_config.json."""
    folders = {}
    for name in ("stock", "ours"):
        folders[name] = tmp_path / name
        shutil.copytree(DATA / "dense" / request.param, folders[name])
    config = folders["ours"] / "genai_config.json"
    changed = json.loads(config.read_text())
    changed["model"]["decoder"]["session_options"]["custom_ops_library"] = Path(LIBRARY).name
    config.write_text(json.dumps(changed))
    shutil.copyfile(LIBRARY, folders["ours"] / Path(LIBRARY).name)
    return folders


def generate(folder, prompt, step=None, new=NEW_TOKENS):
    """Greedy tokens, the prompt taken `step` tokens at a time, and the logits of each."""
    model = onnxruntime_genai.Model(str(folder))
    parameters = onnxruntime_genai.GeneratorParams(model)
    length = len(prompt) + new
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
    generator = onnxruntime_genai.Generator(model, parameters)
    for first in range(0, len(prompt), step or len(prompt)):
        part = prompt[first : first + (step or len(prompt))]
        generator.append_tokens(np.array([part], np.int32))
    logits = []
    while not generator.is_done():
        logits.append(np.array(generator.get_logits()).reshape(-1))
        generator.generate_next_token()
    return list(map(int, generator.get_sequence(0))), np.array(logits)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: f"{len(prompt)} tokens")
def test_tokens_are_those_without_the_library(package, prompt):
    stock, stock_logits = generate(package["stock"], prompt)
    ours, our_logits = generate(package["ours"], prompt)
    assert len(set(stock)) > 30, "a text that repeats itself shows little"
    assert ours == stock
    scale = np.abs(stock_logits).max()
    np.testing.assert_allclose(our_logits, stock_logits, rtol=0, atol=2e-2 * scale)


# The builder's four bits for the CPU take activations of eight bits, so their tokens are their own.
@pytest.mark.parametrize("package", ["float32"], indirect=True)
def test_tokens_are_those_of_transformers(package):
    for text in json.loads((DATA / "dense.json").read_text()):
        tokens, _ = generate(package["ours"], text["prompt"], new=len(text["tokens"]))
        assert tokens == text["prompt"] + text["tokens"]


def test_a_prompt_in_parts_gives_the_same_tokens(package):
    whole, _ = generate(package["ours"], PROMPTS[0])
    for step in (1, 3):
        parts, _ = generate(package["ours"], PROMPTS[0], step)
        assert parts == whole


def test_every_output_agrees_with_a_bare_session(package):
    """One run of the graph, states included; the graph has the operators that this is about."""
    nodes = onnx.load(package["ours"] / "model.onnx", load_external_data=False).graph.node
    counted = Counter(node.op_type for node in nodes if node.op_type in DENSE)
    assert counted == {name: 3 for name in DENSE}
    options = ort.SessionOptions()
    options.register_custom_ops_library(LIBRARY)
    ours = ort.InferenceSession(package["ours"] / "model.onnx", options)
    stock = ort.InferenceSession(package["stock"] / "model.onnx")
    feeds = {
        "input_ids": np.array([[5, 6, 7]], np.int64),
        "attention_mask": np.ones((1, 3), np.int64),
        "position_ids": np.tile(np.arange(3), (3, 1, 1)),
    }
    open_dims = {"past_sequence_length": 0, "batch_size": 1, "kv_cache_dim": 32}
    for value in ours.get_inputs():
        if value.name.startswith("past"):
            shape = [open_dims.get(dim, dim) for dim in value.shape]
            feeds[value.name] = np.zeros(shape, np.float32)
    for value, actual, expected in zip(
        ours.get_outputs(), ours.run(None, feeds), stock.run(None, feeds), strict=True
    ):
        scale = max(1e-3, np.abs(expected).max())
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-2 * scale, err_msg=value.name)
