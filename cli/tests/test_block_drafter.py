"""`generate --draft dflash2` on the demonstration model, and packages without a drafter."""

import json

import pytest
from test_command_line import MODEL, PROMPT, generate, link_model, run, wrong


def total(*arguments):
    return json.loads(generate(*arguments, "--json").stdout.splitlines()[-1])["total"]


@pytest.fixture(scope="module")
def heldout(tmp_path_factory):
    """256 bytes out of each twelfth of the text that neither model nor drafter has seen."""
    text = (MODEL / "heldout.txt").read_bytes()
    starts = range(0, len(text) - 256, len(text) // 12)
    prompts = [text[start : start + 256].decode("ascii") for start in starts]
    path = tmp_path_factory.mktemp("heldout") / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


@pytest.mark.parametrize("temperature", [0, 0.7])
@pytest.mark.parametrize("is_heldout", [True, False], ids=["held out", "prompts"])
def test_the_drafter_pays_more_than_lookup(heldout, is_heldout, temperature):
    prompts = ["--prompt-file", heldout if is_heldout else MODEL / "prompts.jsonl"]
    common = [*prompts, "--max-tokens", 100, "--temperature", temperature, "--seed", 3]
    drafted = total(*common, "--draft", "dflash2", *(["--verify"] if temperature == 0 else []))
    lookup = total(*common, "--draft", "lookup")
    assert drafted["mean_accepted_length"] >= 1.5 * lookup["mean_accepted_length"]
    assert temperature > 0 or drafted["verify"]["equal"] == drafted["prompts"]


def test_drawn_drafts_repeat_with_their_seed():
    common = ["--prompt", PROMPT, "--temperature", 0.7, "--draft", "dflash2"]
    texts = [generate(*common, "--seed", seed).stdout for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) == 200


def test_fewer_drafts_than_the_drafter_has():
    common = ["--prompt", PROMPT, "--max-tokens", 60, "--draft", "dflash2", "--verify", "--stats"]
    few = json.loads(generate(*common, "--draft-tokens", 2, "--json").stdout)
    assert few["verify"]["equal"] and few["verify_calls"] > 0
    assert few["drafted"] <= 2 * few["verify_calls"]
    operators = {entry["op_type"] for entry in few["operators"]["times"]}
    assert {"DFlash2DynamicConv", "GatedDeltaNet", "PagedAttention"} <= operators


def test_drawn_drafts_are_not_compared_by_bytes():
    message = wrong(
        *("generate", "--model", MODEL, "--prompt", "x"),
        *("--draft", "dflash2", "--verify", "--temperature", 0.7),
    )
    assert "--temperature 0" in message


def drafter_section(folder, change):
    link_model(folder, without="genai_config.json")
    config = json.loads((MODEL / "genai_config.json").read_text())
    change(config["model"])
    (folder / "genai_config.json").write_text(json.dumps(config))
    return ["generate", "--model", folder, "--prompt", "x", "--draft", "dflash2"]


def test_a_package_without_a_drafter(tmp_path):
    call = drafter_section(tmp_path, lambda model: model.pop("dflash2"))
    assert "no drafter" in wrong(*call)
    assert len(run(*call[:-2], "--max-tokens", 8).stdout) == 8


def test_a_drafter_whose_file_is_missing_is_named(tmp_path):
    call = drafter_section(tmp_path, lambda model: model["dflash2"].update(filename="gone.onnx"))
    assert b"gone.onnx" in run(*call, status=1).stderr


@pytest.mark.parametrize("key", ["block_size", "selector_top_k"])
def test_a_drafter_of_another_shape_is_refused_before_the_text(tmp_path, key):
    call = drafter_section(tmp_path, lambda model: model["dflash2"].update({key: 5}))
    result = run(*call, status=1)
    assert result.stdout == b"" and b"draft_candidate_ids" in result.stderr
