"""The demonstration model and its trained drafter through the stock builder and retarget: GenAI's
Engine accepts as many drafts as `deltaworks generate` does, and no token changes."""

import json
import subprocess

import pytest
from deltaworks.retarget import retarget
from genai import PACKAGES, ROOT, decode, without_drafter

og = pytest.importorskip("onnxruntime_genai")

PROGRAM = ROOT / "build/release/bin/deltaworks"
DEMO = ROOT / "models/demo"
END_OF_DOCUMENT = 256
TOKENS = 120


@pytest.fixture(scope="module")
def texts():
    lines = (DEMO / "prompts.jsonl").read_text().splitlines()
    prompts = [[END_OF_DOCUMENT, *json.loads(line).encode()] for line in lines]
    return [{"prompt": prompt, "tokens": [0] * TOKENS} for prompt in prompts]


def generated(model, draft):
    """The program's greedy bytes after all prompts, and its figures."""
    command = [PROGRAM, "generate", "--model", model, "--prompt-file", DEMO / "prompts.jsonl"]
    command += ["--max-tokens", str(TOKENS), "--draft", draft, "--json"]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    *lines, last = map(json.loads, output.splitlines())
    return [line["tokens"] for line in lines], last["total"]


def engine_of(folder):
    return og.Engine(og.Model(str(folder)))


@pytest.mark.parametrize("precision, share", [("float16", 0.98), ("bfloat16", 0.9), ("int4", 0.8)])
def test_a_stock_drafter_drafts_as_well_as_in_generate(precision, share, texts, tmp_path):
    """`share` of what models/demo accepts: to other weights than float16 it was not trained."""
    source, package, plain = PACKAGES / "demo" / precision, tmp_path / "cpu", tmp_path / "plain"
    if not source.is_dir():
        pytest.skip("not shipped, for its size; scripts/test_genai.sh builds it")
    for folder in (package, plain):
        retarget(source, folder)
    without_drafter(plain)
    expected, plain_steps = decode(engine_of(plain), texts)
    engine = engine_of(package)
    results, steps = decode(engine, texts)
    assert results == expected
    assert steps < plain_steps / 2
    stats = engine.get_speculative_stats()
    assert stats["dflash2_failures"] == 0

    tokens, total = generated(package, "dflash2")
    assert tokens == [[t for t in result if t != END_OF_DOCUMENT] for result in results]
    assert stats["rounds"] == pytest.approx(total["verify_calls"], rel=0.02)
    assert stats["draft_tokens_accepted"] == pytest.approx(total["accepted"], rel=0.02)
    lookup, ours = generated(package, "lookup")[1], generated(DEMO, "dflash2")[1]
    length = total["mean_accepted_length"]
    assert length > 1.5 * lookup["mean_accepted_length"]
    assert length > share * ours["mean_accepted_length"]
