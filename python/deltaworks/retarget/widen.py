"""Activations of 16 bits to float32: a CPU multiplies those faster, and in bfloat16 not at all.

Weights stay as they are stored. A Cast makes float32 of each, which ONNX Runtime folds when it
loads the model; what is only looked up (an embedding) is widened after the look-up instead, so
that it stays small in memory too.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from ._refused import Refused

NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Nodes that move numbers and compute none: of narrow data they make narrow data.
MOVES = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Gather"}
# Integer attributes that are an element type.
TYPE_ATTRIBUTES = {"to", "dtype", "output_dtype"}


def narrow_values(graph: GraphProto) -> set[str]:
    """The values of a graph that are float16 or bfloat16."""
    values = {v.name for v in every_value(graph) if v.type.tensor_type.elem_type in NARROW}
    return values | {t.name for t in graph.initializer if t.data_type in NARROW}


def every_value(graph: GraphProto) -> Iterable[ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def widen(graph: GraphProto, keep: frozenset[str] = frozenset()) -> int:
    """Makes every value float32, but for the stored weights and the inputs named in `keep`.

    The number of values that it changed.
    """
    narrow = {t.name for t in graph.initializer if t.data_type in NARROW} | keep
    changed = 0
    nodes: list[NodeProto] = []
    widened: dict[str, str] = {}  # stored value: its float32 form
    for node in graph.node:
        check(node)
        if moves_narrow(node, narrow):
            narrow.add(node.output[0])
        elif node.op_type != "Cast" or node.domain:  # which reads any type as it is
            nodes += widen_inputs(node, narrow, widened)
        widen_attributes(node)
        nodes.append(node)
    for value in every_value(graph):
        tensor = value.type.tensor_type
        if tensor.elem_type in NARROW and value.name not in narrow:
            tensor.elem_type = TensorProto.FLOAT
            changed += 1
    for output in graph.output:
        if output.name in narrow:
            raise Refused([f"the output {output.name} is a stored weight of 16 bits"])
    describe(graph, widened)
    del graph.node[:]
    graph.node.extend(nodes)
    return changed


def describe(graph: GraphProto, widened: dict[str, str]) -> None:
    """Adds the types of the new values."""
    known = {t.name: helper.make_tensor_value_info(t.name, 0, t.dims) for t in graph.initializer}
    known |= {value.name: value for value in every_value(graph)}
    for source, wide in widened.items():
        if source in known:
            value = graph.value_info.add()
            value.CopyFrom(known[source])
            value.name = wide
            value.type.tensor_type.elem_type = TensorProto.FLOAT


def check(node: NodeProto) -> None:
    if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
        raise Refused(
            [f'node "{node.name}": a {node.op_type} with an inner graph is not rewritten']
        )


def moves_narrow(node: NodeProto, narrow: set[str]) -> bool:
    return node.domain == "" and node.op_type in MOVES and node.input[0] in narrow


def widen_inputs(node: NodeProto, narrow: set[str], widened: dict[str, str]) -> list[NodeProto]:
    """Lets the node read float32; the Casts that this needs."""
    casts = []
    for index, name in enumerate(node.input):
        if name not in narrow:
            continue
        if name not in widened:
            wide = widened[name] = f"{name}/float32"
            casts.append(
                helper.make_node("Cast", [name], [wide], f"{name}/widen", to=TensorProto.FLOAT)
            )
        node.input[index] = widened[name]
    return casts


def widen_attributes(node: NodeProto) -> None:
    """A Cast to 16 bits becomes one to float32; ONNX Runtime drops those that change nothing."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in NARROW:
            wide = numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
        elif attribute.name in TYPE_ATTRIBUTES and attribute.i in NARROW:
            attribute.i = TensorProto.FLOAT
