"""A graph of the builder's to one for the CPU."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, helper

from ._refused import Refused
from .configuration import Config, Options
from .dynamic_convolution import fuse
from .graph import Graph
from .widen import narrow_values, widen

INT8 = 4  # MatMulNBits' number for this accuracy


def rewrite(part: Config, model: ModelProto, options: Options) -> list[str]:
    """Changes the decoder's graph or a drafter's; what it changed."""
    changes = int8_activations(model) if options.int8_activations else []
    aux = part.get("inputs", {}).get("aux_hidden_states")  # of a drafter: what the decoder hands it
    if aux is None:
        return changes + (keep(part, model) if options.keep_float16 else widened(model))
    if convolutions := fuse(model.graph):
        model.opset_import.add(domain="deltaworks", version=1)
        changes.append(f"{convolutions} dynamic convolutions, now deltaworks::DFlash2DynamicConv")
    else:
        changes.append("note: no dynamic convolution was recognised; plain nodes run it, slower")
    # Its own type is bfloat16, which a CPU cannot multiply, so only its input can stay.
    return changes + widened(model, frozenset([aux] if options.keep_float16 else []))


def int8_activations(model: ModelProto) -> list[str]:
    """What the builder asks for in its own packages for CPUs."""
    nodes = [node for node in model.graph.node if node.op_type == "MatMulNBits"]
    for node in nodes:
        others = [a for a in node.attribute if a.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute("accuracy_level", INT8)])
    return [f"{len(nodes)} products with four-bit weights take activations of eight bits"]


def keep(part: Config, model: ModelProto) -> list[str]:
    graph = Graph(model.graph)
    if any(graph.element_type(name) == TensorProto.BFLOAT16 for name in narrow_values(model.graph)):
        raise Refused(
            [
                f"{part['filename']} has bfloat16 activations, which ONNX Runtime cannot multiply "
                "on a CPU: leave out --keep-float16"
            ]
        )
    return ["activations stay float16"]


def widened(model: ModelProto, kept: frozenset[str] = frozenset()) -> list[str]:
    changed = widen(model.graph, kept)
    return [f"{changed} values of 16 bits, now float32; weights stay as they are stored"]
