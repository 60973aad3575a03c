"""Who runs each node on the CPU: this library by its contracts, or ONNX Runtime, which is asked.

ONNX Runtime answers with sessions of one node each, without weights, so that a large package costs
no more than a small one.
"""

from __future__ import annotations

import importlib
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from .. import _core
from .graph import Graph, attribute

# Weights in an order for tensor cores, which ONNX Runtime's CPU kernels would take for the plain
# one: the attribute, its default, and the builder's option for the plain order, which is 0.
LAYOUTS = {
    "MatMulNBits": ("weight_prepacked", 0, "matmulnbits_weights_prepacked=0"),
    "QMoE": ("weights_prepacked", -1, "qmoe_weights_prepacked=0"),
}


def refusals(model: ModelProto) -> list[str]:
    """Why nodes would not run: a line for each kind of node, which names the first of them."""
    graph = Graph(model.graph)
    alike: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        alike.setdefault(signature(graph, node), []).append(node)
    lines = []
    for nodes in alike.values():
        if why := reason(model, graph, nodes[0]):
            others = f" and {len(nodes) - 1} more like it" if len(nodes) > 1 else ""
            lines.append(f'node "{nodes[0].name or nodes[0].output[0]}"{others}: {why}')
    return lines


def unasked(model: ModelProto) -> list[str]:
    """What the graph does not tell enough of to ask ONNX Runtime about it; empty without one."""
    graph = Graph(model.graph)
    nodes = [
        node
        for node in model.graph.node
        if not _core.is_operator(node.domain, node.op_type) and not asked_types(graph, node)[1]
    ]
    if not nodes or onnxruntime() is None:
        return []
    first = nodes[0].name or nodes[0].output[0]
    return [
        f'note: {len(nodes)} nodes were not asked about, the first of them "{first}": the graph '
        "does not tell the types of their inputs"
    ]


def signature(graph: Graph, node: NodeProto) -> str:
    """What the answer depends on: nodes that differ in names alone share it."""
    bare = NodeProto(op_type=node.op_type, domain=node.domain)
    bare.attribute.extend(node.attribute)
    values = [(name and graph.element_type(name), graph.shape(name)) for name in node.input]
    return (
        f"{bare.SerializeToString(deterministic=True)!r} {values} {[bool(o) for o in node.output]}"
    )


def reason(model: ModelProto, graph: Graph, node: NodeProto) -> str:
    if _core.is_operator(node.domain, node.op_type):
        return _core.why_not(
            node.domain,
            node.op_type,
            [
                (graph.element_type(name), graph.shape(name)) if name else None
                for name in node.input
            ],
            [bool(name) for name in node.output],
            {a.name: value_of(a) for a in node.attribute},
        )
    return layout_reason(node) or runtime_reason(model, graph, node)


def layout_reason(node: NodeProto) -> str:
    if node.op_type not in LAYOUTS:
        return ""
    name, otherwise, option = LAYOUTS[node.op_type]
    layout = attribute(node, name, otherwise)
    if layout == 0:
        return ""
    return f"{name} is {layout}, a layout for GPUs: build with --extra_options {option}"


def value_of(attribute: AttributeProto) -> int | float | str | None:
    """What a contract may ask for; None stands for another kind, such as a list."""
    if attribute.type == AttributeProto.INT:
        return int(attribute.i)
    if attribute.type == AttributeProto.FLOAT:
        return float(attribute.f)
    return attribute.s.decode(errors="replace") if attribute.type == AttributeProto.STRING else None


def runtime_reason(model: ModelProto, graph: Graph, node: NodeProto) -> str:
    """Why ONNX Runtime makes no session of this node alone; empty when it does."""
    runtime = onnxruntime()
    types, is_known = asked_types(graph, node)
    if runtime is None or not is_known:
        return ""
    constants = [c for name in node.input if (c := graph.chain(name, "Constant")) is not None]
    # Weights become inputs. Of other values the type is enough: the builder's shapes of them are
    # not always right, and nothing depends on them.
    inputs = [
        helper.make_tensor_value_info(
            name, kind, graph.shape(name) if name in graph.initializers else None
        )
        for name, kind in types.items()
    ]
    alone = helper.make_model(
        GraphProto(
            name="node",
            node=[*(nodes[0] for nodes in constants), node],
            input=inputs,
            output=[ValueInfoProto(name=name) for name in node.output if name],
        ),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what fails is told here
    try:
        runtime.InferenceSession(
            alone.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # of a dozen classes, none of them documented
        said = str(error).split(" : ", 3)[-1]
        return f"ONNX Runtime {runtime.__version__} does not run it on the CPU: {said}"
    return ""


def asked_types(graph: Graph, node: NodeProto) -> tuple[dict[str, int], bool]:
    """The types of its inputs that no constant node makes, and whether all are known."""
    names = [name for name in node.input if name and graph.chain(name, "Constant") is None]
    types = {name: graph.element_type(name) for name in names}
    return types, all(types.values())


def onnxruntime() -> Any:
    """The module, where it is installed: it has no types, and the rest works without it."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        return None
