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


def link_model(folder, without):
    for file in MODEL.iterdir():
        if file.name != without:
            (folder / file.name).symlink_to(file.resolve())


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
        ["generate", "--model", ROOT, "--prompt", "x", "--draft", "nonsense"],
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


@pytest.mark.parametrize("arguments", [["generat"], ["generate", "--model", ROOT, "a prompt"]])
def test_a_word_too_many_is_named_before_what_is_missing(arguments):
    assert wrong(*arguments).startswith(f"The following argument was not expected: {arguments[-1]}")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--max-tokens", "-1", "from 0 to 2147483647"),
        ("--max-tokens", "5x", "from 0 to 2147483647"),
        ("--max-tokens", "99999999999999999999", "from 0 to 2147483647"),
        ("--seed", "-1", "from 0 to 18446744073709551615"),
        ("--draft-tokens", "8", "from 1 to 7"),
        ("--threads", "0x2", "from 1 to 1024"),
        ("--temperature", "nan", "from 0 to 100"),
        ("--temperature", "inf", "from 0 to 100"),
    ],
)
def test_a_wrong_number_is_named_with_its_range(option, value, expected):
    message = wrong("generate", "--model", ROOT, "--prompt", "x", option, value)
    line = message.splitlines()[0]
    assert option in line and f'"{value}"' in line and expected in line
    assert len(line) < 120


def test_a_prompt_file_that_cannot_be_read_is_named(tmp_path):
    message = wrong("generate", "--model", MODEL, "--prompt-file", tmp_path)
    assert str(tmp_path) in message


@pytest.mark.parametrize(
    "arguments",
    [["info"], ["check", "varlen_causal_conv"], ["generate", "--model", MODEL, "--prompt", "x"]],
)
def test_an_unknown_instruction_set_is_refused(arguments):
    result = run(*arguments, status=2, environment={"DELTAWORKS_CPU_TARGET": "FOO"})
    assert result.stdout == b""
    assert b"FOO" in result.stderr and b"SSE4" in result.stderr


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
    exact = {
        (result["operator"], result["result"], result["allowed"]) for result in checked["results"]
    }
    assert ("varlen_causal_conv", "replayed", 0) in exact  # copies
    assert {result["operator"] for result in checked["results"]} >= {
        "causal_conv_with_state",
        "dflash2_dynamic_conv",
        "gated_delta_net",
        "gated_delta_rates",
        "linear_attention",
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


@pytest.mark.parametrize(("draft", "temperature"), [("lookup", 0), ("lookup", 0.7), ("dflash2", 0)])
@pytest.mark.parametrize("threads", [1, 2])
def test_drafts_change_no_byte(draft, temperature, threads):
    common = ["--prompt", PROMPT, "--temperature", temperature, "--seed", 5, "--threads", threads]
    plain = generate(*common)
    drafted = generate(*common, "--draft", draft, "--verify", "--stats")
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["info"],
        ["info", "--json"],
        ["check", "varlen_causal_conv"],
        ["generate", "--model", MODEL, "--prompt", "x"],
    ],
)
def test_output_that_cannot_be_written_is_an_error(arguments):
    with open("/dev/full", "wb") as full:
        result = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert b"standard output" in result.stderr


def test_no_tokens_are_an_empty_text():
    nothing = ["--prompt", "a", "--max-tokens", 0]
    assert generate(*nothing).stdout == b""
    assert generate(*nothing, "--verify", "--draft", "lookup", "--stats").stdout == b""
    result = json.loads(generate(*nothing, "--json", "--verify").stdout)
    assert result["text"] == "" and result["tokens"] == [] and result["verify"]["equal"]


@pytest.mark.parametrize("heads", [1, 3])
def test_wrong_key_heads_are_found_before_the_text(tmp_path, heads):
    link_model(tmp_path, without="genai_config.json")
    config = json.loads((MODEL / "genai_config.json").read_text())
    for group in config["model"]["decoder"]["state_groups"]:
        update = group.get("state_update", {})
        if "key_head_count" in update:
            assert update["key_head_count"] != heads
            update["key_head_count"] = heads
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    result = run("generate", "--model", tmp_path, "--prompt", PROMPT, "--draft", "lookup", status=1)
    assert result.stdout == b""
    assert f"key_head_count {heads}".encode() in result.stderr


def test_an_operator_that_onnxruntime_lacks_names_its_version(tmp_path):
    link_model(tmp_path, without="model.onnx")
    graph = (MODEL / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(graph.replace(b"GatedRMSNorm", b"GatedRMSNor2"))
    message = run("generate", "--model", tmp_path, "--prompt", "x", status=1).stderr.decode()
    version = json.loads(run("info", "--json").stdout)["onnxruntime"]["version"]
    assert "GatedRMSNor2" in message and f"ONNX Runtime {version}" in message
    assert "newer" in message
