"""deltaworks.retarget on what is no package, or no longer: a reason each time, and nothing left."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest
from deltaworks.retarget import Refused, retarget
from genai import PACKAGES, change_configuration, change_graph, copy_of
from test_retarget_folders import digests

LIBRARY = "libdeltaworks_onnxruntime.so"
DEAD = 4_194_305  # above Linux's largest process


@pytest.fixture
def source(tmp_path):
    return copy_of("paged/float16", tmp_path / "source")


def refused(source, reason):
    """Refused for that reason, in one line each, and nothing is written."""
    before = digests(source)
    with pytest.raises(Refused, match=reason) as caught:
        retarget(source, source.parent / "target")
    assert caught.value.reasons and "" not in caught.value.reasons
    assert digests(source) == before
    assert [path.name for path in source.parent.iterdir()] == ["source"]


@pytest.mark.parametrize(
    "field, value, reason",
    [
        ("model", [], r"model is \[\], expected an object"),
        ("model.context_length", "x", 'model.context_length is "x", expected a number above 0'),
        ("model.decoder", "model.onnx", 'model.decoder is "model.onnx", expected an object'),
        ("model.decoder.filename", "../model.onnx", "expected the name of a file in the same"),
        ("model.dflash2.filename", "model.onnx", "names model.onnx twice"),
        ("model.decoder.session_options", None, "session_options is null, expected an object"),
        ("model.decoder.shared_initializers", [{}], r"is \[{}\], expected a list of weights"),
        ("model.dflash2", {}, "names no model.dflash2.filename"),
        ("model.dflash2.sliding_window", -1, "is -1, expected a number above 0, or none"),
        ("engine", [1], r"engine is \[1\], expected an object"),
        ("engine.dynamic_batching.block_size", 0, "block_size is 0, expected a number above 0"),
        ("speculative.max_draft_tokens", True, "is true, expected a number above 0"),
    ],
)
def test_a_field_that_is_not_what_it_must_be(source, field, value, reason):
    *path, last = field.split(".")

    def change(config):
        for key in path:
            config = config[key]
        config[last] = value

    change_configuration(source, change)
    refused(source, reason)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model"', "\xff"])
@pytest.mark.parametrize("name", ["genai_config.json", "tokenizer_config.json"])
def test_a_configuration_that_is_no_object(source, name, text):
    (source / name).write_bytes(text.encode("latin-1"))
    refused(source, f"{name} (is no JSON|holds no JSON object)")


@pytest.mark.parametrize("name", ["model.onnx", "dflash2.onnx"])
def test_a_graph_that_is_cut_off(source, name):
    path = source / name
    path.write_bytes(path.read_bytes()[:-100])
    refused(source, f"{name} (is no ONNX model|is damaged)")


def test_weights_that_are_cut_off(source):
    path = source / "model.onnx.data"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    refused(source, f"has {len(whole) - 1:,} bytes, but weights up to .*: it is not whole")
    path.unlink()
    refused(source, "no file model.onnx.data, which holds weights")


def lose_a_node(graph):
    graph.node.remove(next(node for node in graph.node if node.op_type == "GatedDeltaNet"))


def lose_an_input(graph):
    next(node for node in graph.node if node.op_type == "MatMul").input.pop()


def lose_a_place(graph):
    stored = next(tensor for tensor in graph.initializer if tensor.external_data)
    del stored.external_data[:]
    stored.external_data.add(key="offset", value="x")


def forget(name, index):
    def change(graph):
        value = next(value for value in graph.input if value.name == name)
        value.type.tensor_type.shape.dim[index].Clear()

    return change


@pytest.mark.parametrize(
    "change, reason",
    [
        (lose_a_node, "is damaged: node .* which nothing before it makes"),
        (lose_an_input, 'MatMul" has 1 inputs, expected 2'),
        (lose_a_place, "which is no place"),
        (forget("past_key_values.3.key", 2), r"past_key_values.3.key: .* its extents .*-1"),
        (forget("past.0.conv", 1), r"past.0.conv: .* its extents .*-1"),
    ],
    ids=["node", "input", "place", "cache", "state"],
)
def test_a_graph_that_is_damaged_or_tells_too_little(source, change, reason):
    change_graph(source / "model.onnx", change)
    refused(source, reason)


def test_wrong_numbers(source, tmp_path):
    for name in ("cache_bytes", "max_batch_size"):
        with pytest.raises(ValueError, match=f"{name} is 0, expected at least 1"):
            retarget(source, tmp_path / "target", **{name: 0})


def test_a_library_in_the_source_stays_as_it_is(source, tmp_path):
    (source / LIBRARY).write_text("another version")
    retarget(source, tmp_path / "target", link=True)
    assert (source / LIBRARY).read_text() == "another version"
    assert (tmp_path / "target" / LIBRARY).stat().st_size > 1e6


def test_a_full_disk_leaves_nothing(source, tmp_path):
    """A limit on a file's size stands for the disk; the folders on the way go as well."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    target = tmp_path / "new/folders/target"
    command = [sys.executable, "-m", "deltaworks.retarget", source, target]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"{target} is as it was: ") and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_what_a_killed_run_left_goes(tmp_path):
    source, target = PACKAGES / "paged/int4", tmp_path / "target"
    stays = [f".target.partial-{os.getppid()}", ".target.partial-x", f".target.old-{os.getppid()}"]
    # Killed between two renames, a run leaves the old package and no target.
    for name in (f".target.partial-{DEAD}", f".target.old-{DEAD}", *stays):
        (tmp_path / name).mkdir()
    retarget(source, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*stays, "target"])


def test_a_target_that_is_a_link(tmp_path):
    (tmp_path / "target").symlink_to(tmp_path / "real")
    for _ in range(2):
        retarget(PACKAGES / "paged/int4", tmp_path / "target")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["real", "target"]
        assert json.loads((tmp_path / "real/retarget.json").read_text())
    assert (tmp_path / "target").is_symlink()


def test_a_target_whose_parent_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"):
        retarget(PACKAGES / "paged/int4", tmp_path / "file/target")
    assert (tmp_path / "file").read_text() == "mine"
