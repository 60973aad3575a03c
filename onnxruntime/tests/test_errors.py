"""What a user reads when a node or a call is wrong. Every text starts with the operator's name."""

from dataclasses import replace

import numpy as np
import paged_attention_nodes as paged
import pytest
import test_varlen_causal_conv as conv
from gated_delta_net_nodes import Problem
from support import BFLOAT16, Node, assert_same_bits, run, run_bound, session
from test_state_replay import backing_node, normal, run_backing


def refused(action, *fragments):
    with pytest.raises(Exception) as caught:
        action()
    text = str(caught.value)
    for fragment in fragments:
        assert fragment in text, text


def gdn_with(problem=None, symbolic=(), **attributes):
    node = (problem or Problem()).node()
    node.attributes |= attributes
    return lambda: session(node.model(symbolic=symbolic))


@pytest.mark.parametrize(
    "attributes, fragment",
    [
        ({"update_rule": "gated_deltas"}, 'update_rule is "gated_deltas", expected one of'),
        ({"gate_activation": "relu"}, 'gate_activation is "relu", expected one of'),
        ({"beta_activation": "tanh"}, 'beta_activation is "tanh", expected one of'),
        ({"gate_lower_bound": 0.5}, "gate_lower_bound is 0.5, expected"),
        ({"scale": float("nan")}, "scale is NaN"),
        ({"scale": 1}, "attribute scale is an integer, expected a float"),
        ({"update_rule": 3}, "attribute update_rule is an integer, expected a string"),
        ({"chunk_size": 0}, "chunk_size is 0, expected"),
        ({"state_update_capacity": 9}, "state_update_capacity is 9, expected 0 to 8"),
        ({"state_update_capacity": -1}, "state_update_capacity is -1, expected 0 to 8"),
        ({"state_update_capacity": 2}, "capture_count is missing"),
        ({"update_rule": "linear"}, "decay is given"),
        ({"gate_activation": "softplus"}, "a_log is missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_gated_delta_net_attributes(attributes, fragment):
    refused(gdn_with(**attributes), "GatedDeltaNet: " + fragment)
    symbolic = ["?" + name for name in Problem().node().feeds()]
    refused(gdn_with(symbolic=symbolic, **attributes), "GatedDeltaNet: " + fragment)


def test_gated_delta_net_shapes():
    odd = Problem(key_heads=3, value_heads=4)
    node = odd.node()
    refused(lambda: session(node.model()), "GatedDeltaNet: ", "4", "3")
    # Unknown when the session is created, wrong when it runs: nothing is written.
    running = session(node.model(symbolic=node.feeds()))
    outputs = node.poisoned()
    refused(lambda: run_bound(running, node.feeds(), outputs), "GatedDeltaNet: ")
    for name, untouched in node.poisoned().items():
        assert_same_bits(outputs[name], untouched, name)
    missing = Problem().node(without=("key",))
    refused(lambda: session(missing.model()), "GatedDeltaNet: ", "key")
    many = Problem(capacity=2, capture_count=(1, 1))
    refused(lambda: session(many.node().model()), "GatedDeltaNet: capture_count has shape [2]")


@pytest.mark.parametrize(
    "offsets, fragment",
    [
        ([1, 5, 6, 15], "starts at 1"),
        ([0, 6, 5, 15], "falls from 6 to 5"),
        ([0, 5, 6, 14], "ends at 14"),
        ([0, 5, 6, 1 << 30], "ends at 1073741824"),
    ],
)
def test_offsets(offsets, fragment):
    offsets = np.array(offsets, np.int32)
    refused(lambda: run(Problem().node(cu_seqlens=offsets)), "GatedDeltaNet: cu_seqlens", fragment)
    node = conv.Problem(lengths=(5, 1, 9)).node(cumulative_sequence_length=offsets)
    refused(lambda: run(node), "VarlenCausalConvWithState: ", fragment)


@pytest.mark.parametrize(
    "attributes, fragment",
    [
        ({"activation": "gelu"}, 'activation is "gelu"'),
        ({"dilation": 0}, "dilation is 0"),
        ({"dilation": 2}, "initial_state has shape [3, 5, 3], expected [3, 5, 6]"),
        ({"state_update_capacity": 9}, "state_update_capacity is 9, expected 0 to 8"),
        ({"state_update_capacity": 2}, "capture_count is missing"),
    ],
    ids=str,
)
def test_conv_attributes(attributes, fragment):
    node = conv.Problem().node()
    node.attributes |= attributes
    refused(lambda: session(node.model()), "VarlenCausalConvWithState: " + fragment)


@pytest.mark.parametrize("count", [-1, 4])
def test_replay_count(count):
    state, update = normal(2, 6, 3), normal(2, 3, 6)
    inputs = [("state", state), ("state_update", update), ("count", np.array([1, count], np.int32))]
    node = Node("ConvStateReplay", inputs, [("new_state", np.float32, state.shape)])
    node.domain = "deltaworks"
    refused(lambda: run(node), "ConvStateReplay: count[1]", str(count))
    rows = Node(
        "GatedDeltaStateReplay",
        [("state", normal(2, 2, 4, 4)), ("state_update", normal(2, 42)), inputs[2]],
        [("new_state", np.float32, (2, 2, 4, 4))],
        {"key_heads": 1, "state_update_capacity": 3},
        "deltaworks",
    )
    refused(lambda: run(rows), "GatedDeltaStateReplay: count[1]", str(count))
    del rows.attributes["key_heads"]
    refused(lambda: session(rows.model()), "GatedDeltaStateReplay: attribute key_heads is missing")


CONV = [
    20,
    44,
    28,
    2,
    3,
    3,
    4,
    2,
]  # float32: source, destination, capture bytes; B, C, L, cap, kept
GDN = [3, 5, 0, 8, 20, 2, 3, 3, 1, 4, 2]  # offsets; Hv, V, K, Hk, capacity, kept


@pytest.mark.parametrize(
    "op, good, field, value, fragment",
    [
        ("ConvStateReplay", CONV, 7, 5, "kept_count is 5, expected 0 to 4"),
        ("ConvStateReplay", CONV, 0, -4, "source_offset_bytes is -4"),
        ("ConvStateReplay", CONV, 0, 21, "source_offset_bytes is 21, expected a multiple of 4"),
        ("ConvStateReplay", CONV, 1, 400, "outside destination_backing"),
        ("ConvStateReplay", CONV, 2, 400, "outside capture_backing"),
        ("ConvStateReplay", CONV, 4, 1 << 62, "outside"),
        ("ConvStateReplay", CONV, 4, 0, "channels is 0"),
        ("GatedDeltaNetStateReplay", GDN, 10, 5, "kept_count is 5, expected 1 to 4"),
        ("GatedDeltaNetStateReplay", GDN, 10, 0, "kept_count is 0, expected 1 to 4"),
        ("GatedDeltaNetStateReplay", GDN, 0, 100, "outside source_backing"),
        ("GatedDeltaNetStateReplay", GDN, 4, 1 << 62, "outside capsule_backing"),
        ("GatedDeltaNetStateReplay", GDN, 6, 1 << 31, "Dv is 2147483648"),
        ("GatedDeltaNetStateReplay", GDN, 8, 0, "Hk is 0"),
    ],
)
def test_backing_metadata(op, good, field, value, fragment):
    buffers = (normal(60), normal(60, seed=1), normal(60, seed=2))
    run_backing(backing_node(op, buffers, good), in_place=True)
    metadata = list(good)
    metadata[field] = value
    node = backing_node(op, buffers, metadata)
    destination = buffers[2].copy()
    feeds = node.feeds() | {"destination_backing": destination}
    output = {"destination_out": destination}
    running = session(node.model())
    refused(lambda: run_bound(running, feeds, output), f"{op}: ", fragment)
    assert_same_bits(destination, buffers[2], "nothing is written")


def test_backing_buffers_must_differ():
    node = backing_node("ConvStateReplay", (normal(60),) * 3, CONV)
    shared = node.feeds()["source_backing"].copy()
    feeds = node.feeds() | {"source_backing": shared, "destination_backing": shared}
    running = session(node.model())
    refused(
        lambda: run_bound(running, feeds, {"destination_out": shared}),
        "ConvStateReplay: destination_out overlaps source_backing",
    )


def test_state_must_be_exactly_in_place():
    problem = Problem()
    node = problem.node()
    memory = np.zeros(problem.operands()["initial_state"].size + 8, np.float32)
    shape = problem.operands()["initial_state"].shape
    feeds = node.feeds() | {"initial_state": memory[:-8].reshape(shape)}
    outputs = node.poisoned() | {"final_state": memory[8:].reshape(shape)}
    refused(lambda: run_bound(session(node.model()), feeds, outputs), "GatedDeltaNet: ", "overlaps")


def test_gates_of_another_type_are_refused_at_load():
    problem = replace(Problem(), dtype=np.float16, gate_dtype=BFLOAT16)
    refused(lambda: session(problem.node().model()), "GatedDeltaNet")


@pytest.mark.parametrize(
    "attributes, fragment",
    [
        ({"kv_cache_layout": "LATENT"}, 'kv_cache_layout is "LATENT", expected "SEPARATE"'),
        ({"k_quant_type": "PER_TENSOR"}, 'k_quant_type is "PER_TENSOR", expected "NONE"'),
        ({"v_cache_dtype": "int4"}, 'v_cache_dtype is "int4", expected'),
        ({"num_heads": 3}, "num_heads is 3 and kv_num_heads is 2"),
        ({"local_window_size": 0}, "local_window_size is 0"),
        ({"is_causal": 2}, "is_causal is 2, expected 0 or 1"),
        ({"do_rotary": 1}, "cos_cache is missing"),
        ({"softcap": -1.0}, "softcap is -1"),
    ],
    ids=str,
)
def test_paged_attention_attributes(attributes, fragment):
    node = paged.Problem().node()
    node.attributes |= attributes
    refused(lambda: session(node.model()), "PagedAttention: " + fragment)
    del node.attributes["kv_num_heads"]
    refused(lambda: session(node.model()), "PagedAttention: attribute kv_num_heads is missing")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantised_caches_are_named(dtype):
    node = paged.Problem(dtype=np.float16).node()
    for place in (3, 4):
        name, cache = node.inputs[place]
        node.inputs[place] = (name, np.zeros(cache.shape, dtype))
        node.outputs[place - 2] = (node.outputs[place - 2][0], dtype, cache.shape)
    refused(lambda: session(node.model()), "PagedAttention: key_cache is quantised")


@pytest.mark.parametrize(
    "operand, index, value, fragment",
    [
        ("block_table", (1, 1), -1, "sequence 1"),
        ("block_table", (1, 1), 16, "sequence 1"),
        ("past_seqlens", (2,), 12, "sequence 2"),
        ("past_seqlens", (2,), -1, "past_seqlens"),
        ("cumulative_sequence_length", (1,), 5, "cu_seqlens"),
    ],
)
def test_paged_attention_values(operand, index, value, fragment):
    problem = paged.Problem()
    changed = problem.operands()[operand].copy()
    changed[index] = value
    node = problem.node(**{operand: changed})
    caches = {name: node.feeds()[name].copy() for name in ("key_cache", "value_cache")}
    outputs = node.poisoned() | {f"{name}_out": array for name, array in caches.items()}
    running = session(node.model())
    refused(
        lambda: run_bound(running, node.feeds() | caches, outputs), "PagedAttention: ", fragment
    )
    for name, array in caches.items():
        assert_same_bits(array, node.feeds()[name], f"{name} is untouched")


def test_a_constant_cache_needs_its_output():
    node = paged.Problem().node(cache_outputs=False)
    constant = ("key_cache", "value_cache")
    refused(
        lambda: session(node.model(constant=constant)), "PagedAttention: key_cache is a constant"
    )
    with_outputs = paged.Problem().node()
    session(with_outputs.model(constant=constant))
