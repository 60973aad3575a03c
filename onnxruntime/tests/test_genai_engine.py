"""The package in ONNX Runtime GenAI's Engine writes what `deltaworks generate` writes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import support

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_genai") is None,
    reason="onnxruntime-genai is installed beside the newest ONNX Runtime only",
)

ROOT = support.ROOT
PROGRAM = ROOT / "build/release/bin/deltaworks"
MODEL = ROOT / "models/demo"
PACKAGES = ROOT / "onnxruntime/tests/data"
# Of different lengths, so that the Engine's batch is ragged; the first repeats itself, for drafts.
PROMPTS = [
    "[tale]\nThe sun and the wind, the sun and the wind, the sun and",
    "[play]\nHAMLET.\nO, what",
    "[scripture]\nIn those days there was no king in Israel: every man did",
]
MAX_TOKENS = 96
END_OF_DOCUMENT = 256


def command_line(prompt, draft):
    arguments = ["--prompt", prompt, "--max-tokens", str(MAX_TOKENS), "--draft", draft, "--json"]
    command = [PROGRAM, "generate", "--model", MODEL, *arguments]
    result = subprocess.run(command, capture_output=True, check=True)
    return json.loads(result.stdout)


def example(*arguments):
    command = [sys.executable, ROOT / "examples/genai_engine.py"]
    command += ["--library-folder", Path(support.LIBRARY).parent, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def engine():
    """What examples/genai_engine.py prints of a batch of three and of one request with drafts."""
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    result = example("--json", "--max-tokens", str(MAX_TOKENS), *prompts)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_a_batch_of_three_equals_generate(engine, index):
    tokens = [token for token in engine["batch"][index] if token != END_OF_DOCUMENT]
    assert tokens == command_line(PROMPTS[index], "none")["tokens"]


def test_the_programs_drafts_equal_generate(engine):
    tokens = [token for token in engine["drafted"] if token != END_OF_DOCUMENT]
    assert tokens == command_line(PROMPTS[0], "lookup")["tokens"]


def test_the_package_drafter_is_accepted_as_often_as_in_generate(engine):
    """The same graph, path and rule: what differs is the last bit of a score."""
    ours = [command_line(prompt, "dflash2") for prompt in PROMPTS]
    stats = engine["stats"]
    assert stats["dflash2_failures"] == 0
    assert engine["batch_steps"] < MAX_TOKENS / 2
    for found, name in (("rounds", "verify_calls"), ("draft_tokens_accepted", "accepted")):
        assert stats[found] == pytest.approx(sum(result[name] for result in ours), rel=0.02)


def test_the_example_tells_whose_drafts_they_are():
    result = example("--prompt", PROMPTS[0], "--max-tokens", "8")
    assert result.returncode == 0, result.stderr
    steps, drafted = result.stdout.splitlines()[-2:]
    assert steps.startswith("1 request with the package's drafter: ")
    assert drafted.startswith("the first one with its text's drafts before the drafter's: ")
    assert drafted.endswith(" steps, the same tokens")


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--begin", "9999"], "--begin is 9999, but the tokens are 0 to 263"),
        (["--begin", "-1"], "--begin is -1, but the tokens are 0 to 263"),
        (["--model", support.ROOT / "docs"], "has no genai_config.json"),
        (["--model", PACKAGES / "paged/int4"], "python -m deltaworks.retarget"),
        (["--model", PACKAGES / "dense/int4"], "has no paged cache"),
    ],
    ids=["large token", "negative token", "no package", "CUDA", "dense"],
)
def test_the_example_refuses_what_it_cannot_run(arguments, reason):
    result = example(*arguments)
    assert result.returncode != 0 and result.stdout == ""
    assert reason in result.stderr and "Traceback" not in result.stderr
