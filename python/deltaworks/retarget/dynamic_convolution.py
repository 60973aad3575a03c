"""The dynamic convolution of a DFlash2 drafter, from fifteen plain nodes to one of this library.

The builder writes, for the taps 0 and 1 of a row x[r] and a stage s of two,

    (base[s,0] + dynamic[s,0]) * x[r]  +  (base[s,1] + dynamic[s,1]) * x[r-1] * mask[r]

with `dynamic` split out of one projection and `mask` 0 in the first row of each block. What the
operator needs is read off the graph; a node is replaced only when all of this is as expected. The
operator's arithmetic "activation" rounds where those nodes round, so convolutions keep their bits.
The sum and the norm behind them become two nodes, whose last bit may be another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from .graph import Graph, attribute, replace_nodes

TAPS, STAGES = 2, 2


@dataclass(frozen=True)
class Stage:
    """One convolution as the builder writes it."""

    result: str
    input: str
    dynamic: str  # the projection, [rows, STAGES * TAPS * groups]
    index: int  # of the stage
    base: tuple[str, str]  # of each tap, [1, groups, channels / groups]
    groups: int
    rows_per_lane: int


def fuse(graph: GraphProto) -> int:
    """Replaces the convolutions of which both stages are found; the number of its new nodes."""
    found = Graph(graph)
    pairs: dict[str, dict[int, Stage]] = {}
    for node in graph.node:
        if (stage := match(found, node)) is not None:
            pairs.setdefault(stage.dynamic, {})[stage.index] = stage
    instead: dict[str, list[NodeProto]] = {}  # by the first output of the node that goes
    nodes: list[NodeProto] = []
    for dynamic, stages in pairs.items():
        norm = norm_after(found, stages[1]) if set(stages) == {0, 1} else None
        if norm is None:
            continue
        base = f"{dynamic}/base"
        nodes += base_nodes(graph, base, stages, found)
        instead[stages[0].result] = [convolution(stages[0], base, stages[0].result)]
        instead[stages[1].result] = []
        instead[norm.output[0]] = with_residual(graph, stages[1], base, norm)
    for node in graph.node:
        nodes += instead.get(node.output[0], [node])
    replace_nodes(graph, nodes)
    return sum(node.op_type == "DFlash2DynamicConv" for node in nodes)


def match(graph: Graph, node: NodeProto) -> Stage | None:
    """The convolution that ends in this node."""
    if node.op_type != "Add":
        return None
    own = graph.chain(node.input[0], "Mul")
    previous = graph.chain(node.input[1], "Mul", "Mul")
    if own is None or previous is None:
        return None
    rows_per_lane = block_of_mask(graph, previous[0].input[1])
    taps = [coefficient(graph, term.input[1]) for term in (own[0], previous[1])]
    if rows_per_lane is None or taps[0] is None or taps[1] is None:
        return None
    (base, dynamic, index), (previous_base, same, next_index) = taps[0], taps[1]
    shape = graph.shape(base)
    if (
        not is_shifted(graph, previous[1].input[0], own[0].input[0])
        or (same, next_index) != (dynamic, index + 1)
        or index % TAPS
        or shape is None
        or shape != graph.shape(previous_base)
    ):
        return None
    bases = (base, previous_base)
    return Stage(
        node.output[0], own[0].input[0], dynamic, index // TAPS, bases, shape[1], rows_per_lane
    )


def coefficient(graph: Graph, name: str) -> tuple[str, str, int] | None:
    """base, projection and index of Reshape(base + Reshape(Split(Reshape(projection))[index]))."""
    total = graph.chain(name, "Reshape", "Add")
    part = graph.chain(total[1].input[1], "Reshape", "Split", "Reshape") if total else None
    if total is None or part is None:
        return None
    split = part[1]
    if attribute(split, "axis", 0) != 1 or attribute(split, "num_outputs", 0) != STAGES * TAPS:
        return None
    return total[1].input[0], part[2].input[0], list(split.output).index(part[0].input[0])


def is_shifted(graph: Graph, name: str, source: str) -> bool:
    """Whether a value is Concat(source[0:1], source[0:-1]): to each row the previous one."""
    whole = graph.chain(name, "Concat")
    if whole is None or attribute(whole[0], "axis", 1) != 0 or len(whole[0].input) != 2:
        return False
    for part, end in zip(whole[0].input, (1, -1), strict=True):
        cut = graph.chain(part, "Slice")
        if cut is None or cut[0].input[0] != source:
            return False
        if [integers(graph, bound) for bound in cut[0].input[1:]] != [[0], [end], [0]]:
            return False
    return True


def block_of_mask(graph: Graph, name: str) -> int | None:
    """n, if a value is 1 in every row but those whose number is a multiple of n."""
    nodes = graph.chain(name, "Reshape", "Cast", "Greater", "Mod", "Range")
    if nodes is None:
        return None
    _, _, greater, modulo, numbers = nodes
    block = integers(graph, modulo.input[1])
    if integers(graph, greater.input[1]) != [0] or len(block) != 1:
        return None
    first, step = integers(graph, numbers.input[0]), integers(graph, numbers.input[2])
    return block[0] if (first, step) == ([0], [1]) else None


def integers(graph: Graph, name: str) -> list[int]:
    """A constant's elements; none of what is no constant."""
    value = graph.constant(name)
    return [] if value is None else [int(x) for x in value.reshape(-1)]


def norm_after(graph: Graph, stage: Stage) -> NodeProto | None:
    """The one reader of the second stage, which adds the residual and normalises."""
    readers = graph.readers[stage.result]
    if len(readers) != 1 or stage.result in graph.outputs:
        return None
    norm = readers[0]
    is_plain = norm.op_type == "SkipSimplifiedLayerNormalization" and not any(norm.input[3:])
    return norm if is_plain and norm.input[1] == stage.result else None


def base_nodes(
    graph: GraphProto, name: str, stages: dict[int, Stage], found: Graph
) -> list[NodeProto]:
    """[stages, taps, channels] out of the taps' constants: ONNX Runtime makes it once."""
    parts = [*stages[0].base, *stages[1].base]
    _, groups, width = found.shape(parts[0]) or [1, 1, 1]
    shape = np.array([STAGES, TAPS, groups * width], np.int64)
    graph.initializer.append(numpy_helper.from_array(shape, f"{name}/shape"))
    kind = found.element_type(parts[0])
    for value, dims in ((f"{name}/taps", [STAGES * TAPS, groups, width]), (name, shape.tolist())):
        graph.value_info.append(helper.make_tensor_value_info(value, kind, dims))
    return [
        helper.make_node("Concat", parts, [f"{name}/taps"], f"{name}/Concat", axis=0),
        helper.make_node("Reshape", [f"{name}/taps", f"{name}/shape"], [name], f"{name}/Reshape"),
    ]


def convolution(stage: Stage, base: str, result: str, *residual: str) -> NodeProto:
    return helper.make_node(
        "DFlash2DynamicConv",
        [stage.input, stage.dynamic, base, *residual],
        [result],
        f"{stage.result}/DFlash2DynamicConv",
        domain="deltaworks",
        stage="residual" if residual else "prepare",
        rows_per_lane=stage.rows_per_lane,
        groups=stage.groups,
        arithmetic="activation",
    )


def with_residual(graph: GraphProto, stage: Stage, base: str, norm: NodeProto) -> list[NodeProto]:
    """The second stage with the sum, which was the norm's, and the norm alone."""
    total = norm.output[3] if len(norm.output) > 3 else stage.result
    alone = helper.make_node(
        "SimplifiedLayerNormalization", [total, norm.input[2]], [norm.output[0]], norm.name, axis=-1
    )
    alone.attribute.extend(a for a in norm.attribute if a.name == "epsilon")
    return [convolution(stage, base, total, norm.input[0]), alone]
