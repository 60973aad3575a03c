"""The built program's `explain` on models with functions of their own."""

import onnx
import pytest
from onnx import helper
from test_command_line import run
from test_explain import CHANNELS, TOKENS, convolution, explained, operands, value, written


def test_functions_of_the_model(tmp_path):
    body = convolution("x", "y")
    function = helper.make_function(
        "local",
        "Mix",
        ["x", "weight", "offsets", "state"],
        ["y"],
        [body],
        [helper.make_opsetid("com.microsoft", 1)],
    )
    call = helper.make_node("Mix", ["x", "weight", "offsets", "state"], ["y"], domain="local")
    report = explained(written(tmp_path, [call], operands(), functions=[function]))
    assert [node["name"] for node in report["nodes"]] == ["Mix() > y_conv"]
    assert report["other_operators"] == {"local::Mix": 1}


def function(name, nodes, inputs=("x",), attributes=(), attribute_protos=()):
    return helper.make_function(
        "local",
        name,
        list(inputs),
        ["y"],
        nodes,
        [helper.make_opsetid(domain, 1) for domain in ("com.microsoft", "local")],
        attributes=list(attributes),
        attribute_protos=list(attribute_protos),
    )


def call(name, source="x", target="y", **attributes):
    return helper.make_node(name, [source], [target], domain="local", **attributes)


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--tokens", 7]])
@pytest.mark.parametrize(
    "calls", [{"A": "A"}, {"A": "B", "B": "A"}, {f"F{i}": f"F{i + 1}" for i in range(5000)}]
)
def test_functions_that_never_end(tmp_path, calls, arguments):
    functions = [function(name, [call(callee)]) for name, callee in calls.items()]
    if len(calls) > 2:
        functions.append(function("F5000", [helper.make_node("Relu", ["x"], ["y"])]))
    first = next(iter(calls))
    path = written(tmp_path, [call(first)], [value("x", [1])], functions=functions)
    result = run("explain", path, *arguments, status=1)
    assert result.stdout == b"" and b"functions are recursive" in result.stderr
    assert f"local::{first}".encode() in result.stderr


def test_functions_that_multiply(tmp_path):
    twice = [[call(f"F{i + 1}", target="a"), call(f"F{i + 1}", "a")] for i in range(60)]
    functions = [function(f"F{i}", body) for i, body in enumerate(twice)]
    functions.append(function("F60", [helper.make_node("Relu", ["x"], ["y"])]))
    path = written(tmp_path, [call("F0")], [value("x", [1])], functions=functions)
    assert b"call each other so often" in run("explain", path, status=1).stderr


def test_attributes_of_functions_are_those_of_each_call(tmp_path):
    names = ["x", "weight", "offsets", "state"]
    body = convolution("x", "y")
    for name in ("dilation", "activation"):
        kind = onnx.AttributeProto.STRING if name == "activation" else onnx.AttributeProto.INT
        body.attribute.add(name=name, ref_attr_name=name + "_of_call", type=kind)
    mix = function(
        "Mix",
        [body],
        names,
        ["activation_of_call"],
        [helper.make_attribute("dilation_of_call", 2)],
    )
    calls = [
        helper.make_node("Mix", names, ["a"], "first", domain="local", dilation_of_call=1),
        helper.make_node("Mix", names, ["b"], "second", domain="local"),
        helper.make_node("Mix", names, ["y"], "third", domain="local", activation_of_call="relu"),
    ]
    inputs = operands()
    inputs[3] = value("state", ["sequences", CHANNELS, "history"])
    report = explained(written(tmp_path, calls, inputs, functions=[mix]))
    first, second, third = report["nodes"]
    assert first["name"] == "first > Mix() > y_conv" and first["type"] == "float32"
    assert first["geometry"]["dilation"] == 1 and first["geometry"]["tokens"] == TOKENS
    assert second["geometry"]["dilation"] == 2
    assert 'activation is "relu"' in third["reason"]
