"""What the execution provider does not claim: one line in the log says why, and others run it."""

import numpy as np
import onnx
import paged_attention_nodes as paged
import pytest
import test_dflash2_dynamic_conv as dflash2
from gated_delta_net_nodes import Problem
from support import (
    HAS_KERNELS,
    HAS_SCHEMAS,
    PROVIDER,
    assert_claimed,
    assert_same_bits,
    run_bound,
    session,
)
from test_sessions import mixed_graph

WIDE = Problem(key_heads=1, value_heads=1, key_dim=2049, value_dim=2, lengths=(2,))
WIDE_REASON = "GatedDeltaNet: key has key_dim 2049, expected at most 2048"


def logged(captured):
    return [line for line in captured.readouterr().err.splitlines() if "does not claim" in line]


@pytest.mark.skipif(
    not HAS_SCHEMAS, reason="ONNX Runtime before 1.30 knows the operators from the library only"
)
def test_what_it_does_not_claim_is_logged_and_stays_with_the_built_in_kernel(capfd):
    node = WIDE.node()
    if HAS_KERNELS:
        running = session(node.model(), library=None, provider=True, log=2)
        assert_claimed(running, [])
        expected = run_bound(session(node.model(), library=None), node.feeds(), node.poisoned())
        actual = run_bound(running, node.feeds(), node.poisoned())
        for name, array in expected.items():
            assert_same_bits(actual[name], array, name)
    else:
        with pytest.raises(Exception, match="Could not find an implementation"):
            session(node.model(), library=None, provider=True, log=2)
    (line,) = logged(capfd)
    assert f'{PROVIDER} does not claim the node "node": {WIDE_REASON}' in line


@pytest.mark.parametrize("name, label", [("layer.3", '"layer.3"'), ("", 'that computes "output"')])
def test_the_log_names_the_node(capfd, name, label):
    model = onnx.load_from_string(WIDE.node().model())
    model.graph.node[0].name = name
    with pytest.raises(Exception, match=WIDE_REASON):  # of the custom operator, which gets the node
        session(model.SerializeToString(), provider=True, log=2)
    (line,) = logged(capfd)
    assert f"does not claim the node {label}: {WIDE_REASON}" in line


@pytest.mark.parametrize(
    "attributes, reason",
    [
        ({"update_rule": "gated_deltas"}, 'update_rule is "gated_deltas", expected one of'),
        ({"scale": 1}, "attribute scale is an integer, expected a float"),
        ({"state_update_capacity": 2}, "capture_count is missing, expected it"),
        ({"gate_activation": "a" * 100}, f'gate_activation is "{"a" * 100}", expected one of'),
        ({"gate_activation": ""}, 'gate_activation is "", expected one of'),
        ({"update_rule": ["delta"]}, "attribute update_rule is of another kind, expected a string"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_attribute_is_the_reason(capfd, attributes, reason):
    node = Problem().node()
    node.attributes |= attributes
    try:
        session(node.model(), provider=True, log=2)
    except Exception as error:  # the custom operator's, unless it cannot see a list
        assert "GatedDeltaNet: " in str(error)
    (line,) = logged(capfd)
    assert f"GatedDeltaNet: {reason}" in line


@pytest.mark.parametrize(
    "node, reason",
    [
        (Problem().node(), "key_dim, expected at most 2048"),
        (Problem(form="packed").node(), "key_dim, expected at most 2048"),
        (paged.Problem().node(), "head_dim, expected at most 1024"),
        (dflash2.Problem().node(), "taps, expected at most 4"),
    ],
    ids=["separate", "packed", "attention", "dynamic"],
)
@pytest.mark.parametrize("mark", ["", "?"], ids=["unknown dims", "unknown ranks"])
def test_a_width_that_may_exceed_what_is_served_is_the_reason(capfd, node, reason, mark):
    running = session(
        node.model(symbolic=[mark + name for name in node.feeds()]), provider=True, log=2
    )
    (line,) = logged(capfd)
    assert f"{node.op}: the graph does not tell {reason}" in line
    run_bound(running, node.feeds(), node.poisoned())
    assert_claimed(running, [])


@pytest.mark.parametrize(
    "node, known, mark",
    [
        (Problem().node(), "query", ""),
        (Problem().node(), "initial_state", "?"),
        (Problem(form="packed").node(), "initial_state", ""),
        (Problem(form="packed").node(), "initial_state", "?"),
        (paged.Problem().node(), "key_cache", ""),
        (paged.Problem().node(), "query", "?"),
        (dflash2.Problem().node(), "base", "?"),
    ],
)
def test_one_operand_tells_the_width(capfd, node, known, mark):
    symbolic = [mark + name for name in node.feeds() if name != known]
    running = session(node.model(symbolic=symbolic), provider=True, log=2)
    run_bound(running, node.feeds(), node.poisoned())
    assert logged(capfd) == []
    assert_claimed(running, [node.op])


@pytest.mark.parametrize("name, label", [("layer.3", '"layer.3"'), ("", 'that computes "output"')])
def test_a_node_that_cannot_be_read_is_named(capfd, name, label):
    node = Problem().node()
    node.inputs[0] = ("query", np.zeros((1,) * 6, np.float32))
    model = onnx.load_from_string(node.model())
    model.graph.node[0].name = name
    with pytest.raises(Exception, match="GatedDeltaNet: an operand has rank 6"):
        session(model.SerializeToString(), provider=True, log=2)
    (line,) = logged(capfd)
    reason = "GatedDeltaNet: an operand has rank 6, expected at most 5"
    assert f"does not claim the node {label}: {reason}" in line


def test_nothing_is_logged_about_what_it_claims(capfd):
    session(mixed_graph(), provider=True, log=2)
    assert logged(capfd) == []


def test_errors_of_a_run_start_with_the_operators_name():
    node = Problem().node()
    symbolic = node.feeds().keys() - {"initial_state"}
    running = session(node.model(symbolic=symbolic), provider=True)
    for name, wrong, reason in (
        ("cu_seqlens", np.array([0, 5, 6, 14], np.int32), "cu_seqlens ends at 14"),
        ("beta", node.feeds()["beta"][:, :3].copy(), "beta has shape"),
    ):
        outputs = node.poisoned()
        with pytest.raises(Exception, match=f"GatedDeltaNet: {reason}"):
            run_bound(running, node.feeds() | {name: wrong}, outputs)
        for output, untouched in node.poisoned().items():
            assert_same_bits(outputs[output], untouched, output)
