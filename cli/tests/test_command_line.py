"""The built program on the demonstration model: texts, exit codes, JSON, verification."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/release/bin/deltaworks"
MODEL = Path(os.environ.get("DELTAWORKS_TEST_MODEL", ROOT / "models/demo"))
PROMPT = "The old house by the river"


def run(*arguments, text=None, status=0, environment=None):
    result = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        input=text,
        capture_output=True,
        env={**os.environ, **(environment or {})},
    )
    assert result.returncode == status, result.stderr.decode(errors="replace")
    return result


def generate(*arguments, **keywords):
    return run("generate", "--model", MODEL, *arguments, **keywords)


def wrong(*arguments):
    """What a wrong call says."""
    result = run(*arguments, status=2)
    assert result.stdout == b""
    return result.stderr.decode()


def test_help_and_version():
    assert b"generate" in run("--help").stdout
    assert b"--draft-tokens" in run("generate", "--help").stdout
    assert run("--version").stdout.strip().count(b".") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["check", "no_such_operator"],
        ["generate", "--prompt", "x"],
        ["generate", "--model", ROOT],
        ["generate", "--model", "/nonexistent", "--prompt", "x"],
        ["generate", "--model", ROOT, "--prompt", "x", "--prompt-file", "-"],
        ["generate", "--model", ROOT, "--prompt", "x", "--draft", "dflash2"],
        ["generate", "--model", ROOT, "--prompt", "x", "--draft-tokens", "8"],
        ["generate", "--model", ROOT, "--prompt", "x", "--max-tokens", "-1"],
        ["generate", "--model", ROOT, "--prompt", "x", "--temperature", "-1"],
        ["generate", "--model", ROOT, "--prompt", "x", "--threads", "0"],
        ["generate", "--model", ROOT, "--prompt-file", "/nonexistent"],
        ["generate", "--model", ROOT, "--prompt-file", ROOT],
    ],
)
def test_wrong_calls(arguments):
    assert wrong(*arguments)


def test_a_folder_that_is_no_package(tmp_path):
    message = run("generate", "--model", tmp_path, "--prompt", "x", status=1).stderr
    assert b"genai_config.json" in message


def test_info():
    info = json.loads(run("info", "--json").stdout)
    assert info["processor"]["used"] in info["processor"]["instruction_sets"]
    assert info["onnxruntime"]["version"].startswith("1.")
    assert Path(info["operators_library"]["path"]).is_file()
    assert info["onnxruntime"]["path"].encode() in run("info").stdout
    forced = run("info", "--json", environment={"DELTAWORKS_CPU_TARGET": "SSE4"})
    assert json.loads(forced.stdout)["processor"]["used"] == "SSE4"


def test_check():
    assert b"SSE4" in run("check", "varlen_causal_conv").stdout
    checked = json.loads(run("check", "--json", "--seed", "1").stdout)
    assert checked["within"]
    assert {result["operator"] for result in checked["results"]} >= {
        "gated_delta_net",
        "paged_attention",
        "varlen_causal_conv",
    }


def test_a_missing_onnxruntime_says_what_to_do():
    missing = {"DELTAWORKS_ONNXRUNTIME": "/nonexistent"}
    message = generate("--prompt", "x", status=1, environment=missing).stderr
    assert b"scripts/setup.sh" in message


def test_every_way_to_give_a_prompt_gives_one_text(tmp_path):
    expected = generate("--prompt", PROMPT, "--max-tokens", 40)
    assert len(expected.stdout) == 40
    assert expected.stderr == b""
    (tmp_path / "prompt.txt").write_text(PROMPT)
    (tmp_path / "prompts.jsonl").write_text(json.dumps(PROMPT) + "\n")
    common = ["--max-tokens", 40]
    for way, text in [
        (["--prompt-file", tmp_path / "prompt.txt"], None),
        (["--prompt-file", "-"], PROMPT.encode()),
        (["--prompt", "-"], PROMPT.encode()),
    ]:
        assert generate(*way, *common, text=text).stdout == expected.stdout
    lines = generate("--prompt-file", tmp_path / "prompts.jsonl", *common).stdout
    assert lines == expected.stdout + b"\n"


def test_an_empty_prompt_starts_a_document():
    assert len(generate("--prompt", "", "--max-tokens", 8).stdout) == 8


@pytest.mark.parametrize("temperature", [0, 0.7])
@pytest.mark.parametrize("threads", [1, 2])
def test_drafts_change_no_byte(temperature, threads):
    common = ["--prompt", PROMPT, "--temperature", temperature, "--seed", 5, "--threads", threads]
    plain = generate(*common)
    drafted = generate(*common, "--draft", "lookup", "--verify", "--stats")
    assert drafted.stdout == plain.stdout
    assert b"1 of 1 texts equal plain decoding" in drafted.stderr
    assert b"GatedDeltaNet" in drafted.stderr


def test_seeds_give_their_own_texts():
    texts = [
        generate("--prompt", PROMPT, "--temperature", 1, "--seed", seed).stdout
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_json(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps(PROMPT) + "\n" + json.dumps({"prompt": "A"}) + "\n")
    output = generate(
        "--prompt-file", prompts, "--json", "--draft", "lookup", "--verify", "--max-tokens", 50
    ).stdout
    first, second, last = map(json.loads, output.splitlines())
    assert first["prompt"] == PROMPT
    assert second["prompt"] == "A"
    for result in (first, second):
        assert len(result["tokens"]) == result["generated_tokens"] <= 50
        assert bytes(result["tokens"]).decode(errors="replace") == result["text"]
        assert result["verify"]["equal"] is True
    assert last["total"]["prompts"] == last["total"]["verify"]["equal"] == 2


def test_a_prompt_longer_than_the_context_is_refused():
    message = wrong("generate", "--model", MODEL, "--prompt", "x", "--max-tokens", 1 << 20)
    assert "positions" in message


def test_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [PROGRAM, "generate", "--model", MODEL, "--prompt", "x"],
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert result.returncode == 1
    assert b"standard output" in result.stderr
