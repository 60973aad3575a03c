"""The built program's `explain`: on the demonstration model, and on small graphs of every kind."""

import json
import os
import subprocess

import onnx
import pytest
from onnx import TensorProto, helper
from test_command_line import MODEL, PROGRAM, ROOT, run, wrong

FLOAT, DOUBLE, INT = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32
TOKENS, CHANNELS, WIDTH = 9, 6, 4


def explained(path, *arguments):
    return json.loads(run("explain", path, "--json", *arguments).stdout)


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def convolution(source, target, **attributes):
    return helper.make_node(
        "VarlenCausalConvWithState",
        [source, "weight", "offsets", "", "state"],
        [target, target + "_state"],
        name=target + "_conv",
        domain="com.microsoft",
        **attributes,
    )


def operands(kind=FLOAT, tokens=TOKENS):
    return [
        value("x", [tokens, CHANNELS], kind),
        value("weight", [CHANNELS, 1, WIDTH], kind),
        value("offsets", ["sequences+1"], INT),
        value("state", ["sequences", CHANNELS, WIDTH - 1], kind),
    ]


def written(folder, nodes, inputs, outputs=("y",), functions=(), **keywords):
    """A file; the outputs' shapes are left open."""
    graph = helper.make_graph(
        nodes, "graph", inputs, [value(name, None) for name in outputs], **keywords
    )
    domains = [("", 21), ("com.microsoft", 1), ("deltaworks", 1), ("local", 1)]
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*domain) for domain in domains],
        functions=functions,
        ir_version=10,
    )
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("path", [MODEL, MODEL / "model.onnx"])
def test_the_demonstration_model(path):
    report = explained(path)
    assert report["served"] and report["nodes_of_unknown_state"] == 0
    by_operator = {}
    for node in report["nodes"]:
        assert node["served"] and node["type"] == "float32"
        by_operator.setdefault(node["operator"].split("::")[1], []).append(node)
    counts = {operator: len(nodes) for operator, nodes in by_operator.items()}
    assert counts == {"VarlenCausalConvWithState": 6, "GatedDeltaNet": 6, "PagedAttention": 2}
    recurrent = by_operator["GatedDeltaNet"][0]
    assert recurrent["engine"] == "recurrent"
    assert recurrent["geometry"]["value_heads"] == 4 and recurrent["geometry"]["tokens"] is None
    assert recurrent["state"] == {"of_each": "sequence", "bytes": 4 * 64 * 64 * 4}
    assert report["state_bytes"] == {
        "sequence": 6 * (4 * 64 * 64 * 4) + 6 * (512 * 3 * 4),
        "cached token": 2 * (2 * 2 * 64 * 4),
    }


@pytest.mark.parametrize("precision", ["float32", "int4"])
def test_dense_packages_of_the_model_builder(precision):
    report = explained(ROOT / "onnxruntime/tests/data/dense" / precision, "--tokens", 5)
    operators = [node["operator"].split("::")[1] for node in report["nodes"]]
    assert report["served"] and sorted(set(operators)) == ["CausalConvWithState", "LinearAttention"]
    for node in report["nodes"]:
        assert node["geometry"]["length"] == 5
        assert node["state"]["of_each"] == "sequence" and node["state"]["bytes"] > 0, node


def test_the_table_of_the_demonstration_model():
    result = run("explain", MODEL)
    assert result.stderr == b""
    text = result.stdout.decode()
    assert "14 of this library's operators; it serves all of them" in text
    assert "6  com.microsoft::GatedDeltaNet" in text and "64.0 KiB a sequence" in text
    assert "layers.{0-2,4-6}" in text  # one line for the names of six nodes
    assert max(map(len, text.splitlines())) <= 120


def test_tokens_fill_in_what_a_run_decides():
    report = explained(MODEL, "--tokens", 100)
    assert {node["geometry"]["tokens"] for node in report["nodes"]} == {100}
    text = run("explain", MODEL, "--tokens", 100).stdout.decode()
    assert "620 KiB for a sequence of 100 tokens" in text  # 420 KiB and 100 times 2 KiB


@pytest.mark.parametrize(
    ("attributes", "kind", "reason"),
    [
        ({"activation": "relu"}, FLOAT, 'activation is "relu", expected none, silu or swish'),
        ({"dilation": 1.5}, FLOAT, "attribute dilation is a float, expected an integer"),
        ({}, DOUBLE, "input 0 (x) has type float64, expected float32 or float16 or bfloat16"),
    ],
)
def test_a_node_that_cannot_run_is_explained(tmp_path, attributes, kind, reason):
    path = written(tmp_path, [convolution("x", "y", **attributes)], operands(kind))
    report = explained(path)
    assert not report["served"] and reason in report["nodes"][0]["reason"]
    text = run("explain", path).stdout.decode()
    assert "NOT serve 1 of them" in text and "NOT SERVED" in text and reason in text


def test_a_shape_that_does_not_fit_is_named(tmp_path):
    inputs = operands()
    inputs[1] = value("weight", [CHANNELS + 1, 1, WIDTH])
    reason = explained(written(tmp_path, [convolution("x", "y")], inputs))["nodes"][0]["reason"]
    assert reason.startswith("VarlenCausalConvWithState: weight has shape [7, 1, 4]")


def test_shapes_go_through_operators_of_both_kinds(tmp_path):
    nodes = [
        convolution("x", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        convolution("b", "c"),
        convolution("c", "y"),
    ]
    for node in explained(written(tmp_path, nodes, operands()))["nodes"]:
        assert node["geometry"]["tokens"] == TOKENS, node


def test_what_the_file_does_not_tell_stays_open(tmp_path):
    inputs = [value("x", None), *operands()[1:]]
    inputs[1], inputs[3] = value("weight", None), value("state", None)
    report = explained(written(tmp_path, [convolution("x", "y")], inputs))
    node = report["nodes"][0]
    assert node["served"] and node["geometry"]["channels"] is None
    assert node["state"] == {"of_each": "sequence"} and report["nodes_of_unknown_state"] == 1
    text = run("explain", tmp_path / "model.onnx").stdout.decode()
    assert "open: sequences, tokens, channels" in text and "1 node the file does not tell" in text


def test_inner_graphs_see_the_outer_ones(tmp_path):
    def branch(name, node):
        return helper.make_graph([node], name, [], [value(node.output[0], None)])

    condition = helper.make_node(
        "If",
        ["condition"],
        ["y"],
        name="if",
        then_branch=branch("then", convolution("x", "a")),
        else_branch=branch("else", helper.make_node("Relu", ["x"], ["b"])),
    )
    inputs = [*operands(), value("condition", [], TensorProto.BOOL)]
    report = explained(written(tmp_path, [condition], inputs))
    assert [node["name"] for node in report["nodes"]] == ["if > a_conv"]
    assert report["nodes"][0]["geometry"]["tokens"] == TOKENS
    assert report["all_nodes"] == 3


def test_shapes_go_through_operators_of_inner_graphs(tmp_path):
    nodes = [
        convolution("x", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        convolution("b", "c"),
    ]
    graph = helper.make_graph(nodes, "branch", [], [value("c", None)])
    node = helper.make_node("If", ["is"], ["y"], then_branch=graph, else_branch=graph)
    path = written(tmp_path, [node], [*operands(), value("is", [], TensorProto.BOOL)])
    report = explained(path)
    assert len(report["nodes"]) == 4
    for each in report["nodes"]:
        assert each["geometry"]["tokens"] == TOKENS, each


def test_state_of_an_unknown_type_is_unknown(tmp_path):
    mysteries = [helper.make_node("Mystery", ["x"], [each], domain="local") for each in "bc"]
    node = helper.make_node(
        "VarlenCausalConvWithState",
        ["b", "weight", "offsets", "", "c"],
        ["y", "next"],
        domain="com.microsoft",
    )
    inputs = [value("x", [TOKENS, CHANNELS]), operands()[2]]
    weight = onnx.ValueInfoProto(name="weight")
    weight.type.tensor_type.shape.CopyFrom(operands()[1].type.tensor_type.shape)
    last = helper.make_node("Mystery", ["y"], ["z"], domain="local")
    path = written(tmp_path, [*mysteries, node, last], [*inputs, weight], ["z"])
    report = explained(path)
    assert report["nodes"][0]["type"] == "?"
    assert report["nodes"][0]["geometry"]["channels"] == CHANNELS
    assert report["nodes"][0]["state"] == {"of_each": "sequence"}
    assert report["nodes_of_unknown_state"] == 1 and report["state_bytes"] == {}


def test_replays_own_no_state(tmp_path):
    replay = helper.make_node(
        "ConvStateReplay", ["state", "update", "count"], ["y"], domain="deltaworks"
    )
    inputs = [
        *operands(),
        value("update", ["sequences", 7, CHANNELS]),
        value("count", ["sequences"], INT),
    ]
    report = explained(written(tmp_path, [convolution("x", "a"), replay], inputs))
    assert report["served"] and "state" not in report["nodes"][1]
    assert report["state_bytes"] == {"sequence": CHANNELS * (WIDTH - 1) * 4}


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    nodes = [convolution("x", "a"), convolution("x", "y", activation="\x1b[31m")]
    nodes[0].name = "\x1b]0;title\x07\nline\0end\u009b"
    text = run("explain", written(tmp_path, nodes, operands())).stdout.decode()
    assert "\\x1b]0;title\\x07\\x0aline\\x00end\\x9b" in text
    assert all(each.isprintable() or each == "\n" for each in text)
    assert explained(tmp_path / "model.onnx")["nodes"][0]["name"] == nodes[0].name


def test_the_type_of_a_text_is_named(tmp_path):
    path = written(tmp_path, [convolution("x", "y")], operands(TensorProto.STRING))
    assert "input 0 (x) has type string, expected" in explained(path)["nodes"][0]["reason"]


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_what_is_no_regular_file(tmp_path, arguments):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null", "/dev/zero"):
        assert f"{path} is not a regular file" in wrong("explain", path, *arguments)
    (tmp_path / "genai_config.json").write_text('{"model": {"decoder": {"filename": "pipe"}}}')
    assert "pipe is not a regular file" in wrong("explain", tmp_path, *arguments)


def test_weights_need_not_be_there(tmp_path):
    weight = onnx.TensorProto(name="weight", data_type=FLOAT, dims=[CHANNELS, 1, WIDTH])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="nowhere.data")
    inputs = [each for each in operands() if each.name != "weight"]
    path = written(tmp_path, [convolution("x", "y")], inputs, initializer=[weight])
    assert explained(path)["nodes"][0]["geometry"]["width"] == WIDTH


def test_a_model_without_these_operators(tmp_path):
    path = written(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], [value("x", [1])])
    assert explained(path)["nodes"] == []
    assert b"would not use the library" in run("explain", path).stdout


def test_files_that_are_no_models(tmp_path):
    (tmp_path / "text.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("text.onnx", "empty.onnx"):
        message = run("explain", tmp_path / name, status=1).stderr.decode()
        assert name in message and "not an ONNX model" in message
    with open(tmp_path / "huge.onnx", "wb") as file:
        file.truncate(1 << 32)  # takes no room on the disk
    assert b"larger than 2 GiB" in run("explain", tmp_path / "huge.onnx", status=1).stderr
    message = run("explain", tmp_path / "missing.onnx", status=1).stderr.decode()
    assert "missing.onnx" in message and "No such file" in message


def test_wrong_calls(tmp_path):
    assert wrong("explain")
    assert "genai_config.json" in wrong("explain", tmp_path)
    (tmp_path / "genai_config.json").write_text('{"model": {}}')
    assert "model.decoder.filename" in wrong("explain", tmp_path)
    assert "--tokens" in wrong("explain", MODEL, "--tokens", 0)


def test_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "wb") as full:
        result = subprocess.run([PROGRAM, "explain", MODEL], stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 1
    assert b"standard output" in result.stderr
