"""deltaworks.retarget puts DFlash2DynamicConv for the plain nodes of a drafter: the same bits."""

import shutil
from collections import Counter

import deltaworks
import numpy as np
import onnx
import onnxruntime
import pytest
from deltaworks.retarget import retarget
from deltaworks.retarget.dynamic_convolution import fuse
from deltaworks.retarget.widen import widen
from genai import PACKAGES, change_graph, copy_of
from onnx import helper
from support import fresh_rng

SOURCE = PACKAGES / "paged/float16"


def split_norms(graph):
    """Two nodes for a sum with a norm, which rounds otherwise than the two do."""
    nodes = []
    for node in graph.node:
        if node.op_type == "SkipSimplifiedLayerNormalization":
            total = node.output[3] if len(node.output) > 3 else f"{node.name}/sum"
            nodes.append(helper.make_node("Add", node.input[:2], [total]))
            norm = helper.make_node(
                "SimplifiedLayerNormalization", [total, node.input[2]], node.output[:1], axis=-1
            )
            norm.attribute.extend(node.attribute)
            nodes.append(norm)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def drafter_session(folder, name, rewrite):
    """Of the builder's drafter in float32, after `rewrite`."""
    model = onnx.load(SOURCE / "dflash2.onnx", load_external_data=False)
    rewrite(model.graph)
    widen(model.graph)
    model.opset_import.add(domain="deltaworks", version=1)
    (folder / name).write_bytes(model.SerializeToString())
    for data in ("model.onnx.data", "dflash2.onnx.data"):
        shutil.copyfile(SOURCE / data, folder / data)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(deltaworks.onnxruntime_library())
    # The next level would fuse the sums and norms again.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return onnxruntime.InferenceSession(folder / name, options), model.graph


def drafter_feeds(lanes, block=8, context=5):
    rng = fresh_rng()
    tokens = lanes * (block + context)
    lane, position = np.divmod(np.arange(tokens), block + context)
    # A lane's tokens are its context, then its block; the rows are all blocks, then all contexts.
    is_block = position >= context
    rows = np.where(
        is_block, lane * block + position - context, lanes * block + lane * context + position
    )
    feeds = {
        "aux_hidden_states": rng.standard_normal((lanes * context, 64)).astype(np.float32),
        "input_ids": rng.integers(0, 136, lanes * block),
        "q_row_map": np.where(is_block, rows, 0).astype(np.int32),
        "qkv_row_map": rows.astype(np.int32),
        "block_row_index": np.flatnonzero(is_block).astype(np.int32),
        "cumulative_sequence_lengths": np.arange(0, tokens + 1, block + context, dtype=np.int32),
        "past_sequence_lengths": np.zeros(lanes, np.int32),
        "block_table": np.arange(lanes, dtype=np.int32)[:, None],
        "attention_metadata": np.array([block + context, block + context, 0], np.int32),
    }
    for layer in range(2):
        for part in ("key", "value"):
            name = f"past_key_values.{layer}.{part}"
            feeds[name] = np.zeros((lanes, 16, 1, 32), np.float32)
    return feeds


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_fused_convolutions_give_the_bits_of_the_plain_nodes(tmp_path, lanes):
    plain, plain_graph = drafter_session(tmp_path, "plain.onnx", split_norms)
    fused, graph = drafter_session(tmp_path, "fused.onnx", fuse)
    operators = Counter(node.op_type for node in graph.node)
    assert operators["DFlash2DynamicConv"] == 8 and operators["Mod"] == 0
    assert operators["SkipSimplifiedLayerNormalization"] == 0
    assert len(graph.node) < len(plain_graph.node) - 8 * 10
    names = [output.name for output in plain.get_outputs()]
    feeds = drafter_feeds(lanes)
    for name, expected, actual in zip(
        names, plain.run(names, feeds), fused.run(names, feeds), strict=True
    ):
        assert expected.size and np.array_equal(actual, expected), name


def end_the_shift_where_it_begins(graph):
    cut = next(node for node in graph.node if node.name.endswith("shift1/Slice"))
    cut.input[2] = cut.input[1]
    return cut.name


def first_norm(graph):
    """The first sum with a norm that reads a convolution."""
    made = {node.output[0]: node.op_type for node in graph.node}
    return next(
        node
        for node in graph.node
        if node.op_type == "SkipSimplifiedLayerNormalization" and made.get(node.input[1]) == "Add"
    )


def give_the_norm_a_bias(graph):
    norm = first_norm(graph)
    norm.input.append(norm.input[2])
    return norm.name


def make_the_convolution_an_output(graph):
    norm = first_norm(graph)
    graph.output.append(onnx.ValueInfoProto(name=norm.input[1]))
    return norm.name


@pytest.mark.parametrize(
    "change", [end_the_shift_where_it_begins, give_the_norm_a_bias, make_the_convolution_an_output]
)
def test_convolutions_of_another_form_stay(change):
    graph = onnx.load(SOURCE / "dflash2.onnx", load_external_data=False).graph
    kept = change(graph)
    assert fuse(graph) == 6
    assert kept in [node.name for node in graph.node]


def test_a_drafter_of_which_nothing_is_recognised_is_told_of(tmp_path):
    source = copy_of("paged/float16", tmp_path / "source")

    def count_axes_from_the_end(graph):
        for node in graph.node:
            for attribute in node.attribute:
                if (node.op_type, attribute.name) == ("Split", "axis"):
                    attribute.i = -2

    change_graph(source / "dflash2.onnx", count_axes_from_the_end)
    changes = [c for c in retarget(source, tmp_path / "target") if "dynamic convolution" in c]
    assert len(changes) == 1
    assert changes[0].startswith("dflash2.onnx: note: no dynamic convolution was recognised")
