"""Looking things up in an ONNX graph, and removing what nothing uses."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, ValueInfoProto, defs, numpy_helper

Array = NDArray[np.generic]


class Graph:
    """Who makes a value, who reads it, and what it is; as the graph was when this was made."""

    def __init__(self, proto: GraphProto) -> None:
        self.outputs = {value.name for value in proto.output}
        self.initializers = {tensor.name: tensor for tensor in proto.initializer}
        self.values: dict[str, ValueInfoProto] = {}
        for values in (proto.input, proto.output, proto.value_info):
            self.values |= {value.name: value for value in values}
        self.producers: dict[str, NodeProto] = {}
        self.readers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in proto.node:
            self.producers |= {name: node for name in node.output if name}
            for name in node.input:
                self.readers[name].append(node)

    def chain(self, name: str, *operators: str) -> list[NodeProto] | None:
        """The node that makes a value, the one that makes its first input, and so on."""
        nodes = []
        for operator in operators:
            node = self.producers.get(name)
            if node is None or node.op_type != operator:
                return None
            nodes.append(node)
            name = node.input[0] if node.input else ""
        return nodes

    def constant(self, name: str) -> Array | None:
        """The value of a constant that the graph's own file holds."""
        node = self.producers.get(name)
        if node is not None and node.op_type == "Constant":
            values = [a.t for a in node.attribute if a.name == "value"]
            return numpy_helper.to_array(values[0]) if values else None
        tensor = self.initializers.get(name)
        if tensor is not None and not tensor.external_data:
            return numpy_helper.to_array(tensor)
        return None

    def element_type(self, name: str) -> int:
        """ONNX's number of a value's element type; 0 where the graph does not tell."""
        if name in self.initializers:
            return int(self.initializers[name].data_type)
        return int(self.values[name].type.tensor_type.elem_type) if name in self.values else 0

    def shape(self, name: str) -> list[int] | None:
        """A value's extents, -1 for an open one; None where the graph does not tell."""
        if name in self.initializers:
            return list(self.initializers[name].dims)
        if name not in self.values or not self.values[name].type.tensor_type.HasField("shape"):
            return None
        dims = self.values[name].type.tensor_type.shape.dim
        return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims]


def damage(proto: GraphProto) -> str:
    """What tells that the file is not as it was written; empty where nothing does.

    Names that are no text come as bytes from protobuf.
    """
    values = [*proto.input, *proto.output, *proto.value_info, *proto.initializer]
    places = [entry.value for tensor in proto.initializer for entry in tensor.external_data]
    if not all(isinstance(text, str) for text in (*places, *(value.name for value in values))):
        return "a value's name or place is no text"
    known = {value.name for value in (*proto.input, *proto.initializer)}
    for node in proto.node:
        names = [node.op_type, node.domain, node.name, *node.input, *node.output]
        if not all(isinstance(name, str) for name in (*names, *(a.name for a in node.attribute))):
            return "a node's names are no text"
        what = f'node "{node.name or node.op_type}"'
        if missing := [name for name in node.input if name and name not in known]:
            return f"{what} reads {missing[0]}, which nothing before it makes"
        is_onnx = node.domain == "" and defs.has(node.op_type)
        needed = defs.get_schema(node.op_type).min_input if is_onnx else 0
        if len(node.input) < needed:
            return f"{what} has {len(node.input)} inputs, expected {needed}"
        known.update(node.output)
    missing = [value.name for value in proto.output if value.name not in known]
    return f"nothing makes the output {missing[0]}" if missing else ""


def attribute(node: NodeProto, name: str, otherwise: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), otherwise)


def replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    """The graph with these nodes instead of its own, without those that lead to no output."""
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(filter(None, node.input))
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    made = {name for node in kept for name in node.output}
    initializers = [tensor for tensor in graph.initializer if tensor.name in needed]
    named = made | {tensor.name for tensor in initializers}
    values = [value for value in graph.value_info if value.name in named]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(initializers)
    graph.value_info.extend(values)
