"""GatedDeltaNet beside ONNX Runtime's own kernel, and its laws to the bit."""

from dataclasses import replace

import numpy as np
import pytest
from gated_delta_net_nodes import Problem, replayed
from support import (
    BFLOAT16,
    TOLERANCE,
    TYPES,
    assert_close,
    assert_same_bits,
    run,
    run_bound,
    run_stock,
    session,
    type_name,
)

FORMS = {
    "separate": (5, 1, 9),
    "packed": (5, 1, 9),
    "rank4": (4, 4),
    "packed_rank3": (4, 4),
    "uniform": (4, 4),
}
GATES = [(dtype, gate) for dtype in TYPES for gate in dict.fromkeys((np.float32, dtype))]
RULES = ["linear", "gated", "delta", "gated_delta"]


def compare(problem):
    """Every output within the type's rounding of ONNX Runtime's kernel."""
    node = problem.node()
    ours, stock = run(node), run_stock(node)
    assert_close(ours["output"], stock["output"], TOLERANCE[np.dtype(problem.dtype)], "output")
    assert_close(ours["final_state"], stock["final_state"], 1e-5, "final_state")
    for sequence, length in enumerate(problem.lengths if problem.capacity else ()):
        count = min(max(problem.capture_count[sequence], 0), problem.capacity, length)
        for part, mine, theirs in zip(
            ("decay", "key", "delta"),
            problem.capsule(ours["state_update"], sequence),
            problem.capsule(stock["state_update"], sequence),
            strict=True,
        ):
            assert_close(mine[:count], theirs[:count], 1e-5, part)
            assert not mine[count:].any(), f"{part}: unused slots are zero"


@pytest.mark.parametrize("activation", ["none", "softplus", "qwen", "sigmoid", "kda"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype, gate_dtype", GATES, ids=lambda t: type_name(t))
def test_matches_onnxruntime(dtype, gate_dtype, form, activation):
    compare(
        Problem(
            lengths=FORMS[form],
            dtype=dtype,
            gate_dtype=gate_dtype,
            form=form,
            activation=activation,
        )
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_update_rules(rule, dtype):
    compare(Problem(dtype=dtype, update_rule=rule))


@pytest.mark.parametrize("form", ["separate", "rank4"])
@pytest.mark.parametrize("dt_bias", ["head", "key", "flat"])
@pytest.mark.parametrize("activation", ["none", "softplus", "kda"])
def test_decay_per_key(form, dt_bias, activation):
    compare(
        Problem(
            lengths=FORMS[form],
            form=form,
            activation=activation,
            decay_per_key=True,
            dt_bias=dt_bias,
            capacity=2,
            capture_count=(2,) * len(FORMS[form]),
        )
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"key_heads": 1, "value_heads": 1, "key_dim": 1, "value_dim": 1},
        {"key_heads": 3, "value_heads": 6, "key_dim": 7, "value_dim": 5},
        {"key_heads": 4, "value_heads": 4, "key_dim": 64, "value_dim": 32},
        {"key_heads": 2, "value_heads": 6, "key_dim": 128, "value_dim": 128},
    ],
    ids=lambda s: "x".join(map(str, s.values())),
)
def test_sizes(sizes):
    compare(Problem(**sizes, activation="qwen", lengths=(1, 70, 3)))


@pytest.mark.parametrize("dtype, gate_dtype", GATES, ids=lambda t: type_name(t))
@pytest.mark.parametrize("counts", [(-1, 0, 3, 9), (4, 4, 4, 4), (0, 0, 0, 0)])
def test_capture(dtype, gate_dtype, counts):
    compare(
        Problem(
            lengths=(10, 5, 1, 8),
            dtype=dtype,
            gate_dtype=gate_dtype,
            activation="qwen",
            capacity=4,
            capture_count=counts,
        )
    )


@pytest.mark.parametrize("decay_per_key", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_capsule_replays_to_the_bit(dtype, decay_per_key):
    problem = Problem(
        lengths=(8, 8, 8),
        dtype=dtype,
        activation="softplus",
        decay_per_key=decay_per_key,
        capacity=8,
        capture_count=(8, 8, 8),
    )
    captured = run(problem.node())["state_update"]
    operands = problem.operands()
    for count in range(1, 9):
        shorter = replace(
            problem, lengths=(count,) * 3, capacity=0, capture_count=(), form="separate"
        )
        kept = np.concatenate([np.arange(count) + 8 * b for b in range(3)])
        parts = {
            name: np.ascontiguousarray(operands[name][kept])
            for name in ("query", "key", "value", "decay", "beta")
        }
        same = {name: operands[name] for name in ("initial_state", "a_log", "dt_bias")}
        expected = run(shorter.node(**parts, **same))["final_state"]
        for sequence in range(3):
            capsule = problem.capsule(captured, sequence)
            state = replayed(problem, operands["initial_state"][sequence], capsule, count)
            assert_same_bits(state, expected[sequence], f"{count} tokens of sequence {sequence}")


def test_inactive_capture_is_zero():
    problem = Problem(capacity=3, capture_count=(2, 1, 3), active=0)
    assert not run(problem.node())["state_update"].any()
    active = run(replace(problem, active=1).node())["state_update"]
    assert_same_bits(active, run(replace(problem, active=None).node())["state_update"])


def test_outputs_may_be_left_out():
    problem = Problem(capacity=2, capture_count=(1, 1, 1), activation="qwen")
    everything = run(problem.node())
    for kept in (("output",), ("output", "final_state"), ("output", "state_update")):
        outputs = run(problem.node(outputs=kept))
        assert set(outputs) == set(kept)
        for name in kept:
            assert_same_bits(outputs[name], everything[name], name)


def test_absent_state_is_zero():
    problem = Problem()
    zeros = np.zeros_like(problem.operands()["initial_state"])
    with_zeros = run(problem.node(initial_state=zeros))
    without = run(problem.node(without=("initial_state",)))
    for name in without:
        assert_same_bits(without[name], with_zeros[name], name)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_forms_are_the_same_memory(dtype):
    outputs = [
        run(Problem(lengths=(4, 4), dtype=dtype, form=form, activation="qwen").node())
        for form in FORMS
    ]
    for other in outputs[1:]:
        for name in other:
            expected = outputs[0][name]
            assert_same_bits(other[name].reshape(expected.shape), expected, name)


@pytest.mark.parametrize("lengths", [(0, 3, 0), (0, 0), ()])
def test_empty_sequences_hand_their_state_on(lengths):
    problem = Problem(lengths=lengths)
    outputs = run(problem.node())
    initial = problem.operands()["initial_state"]
    for sequence, length in enumerate(lengths):
        if length == 0:
            assert_same_bits(outputs["final_state"][sequence], initial[sequence])
    assert np.isfinite(outputs["output"]).all()


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=type_name)
def test_threads_change_no_bit(dtype):
    problem = Problem(
        lengths=(40, 1, 130), key_heads=4, value_heads=8, dtype=dtype, activation="softplus"
    )
    one, two = (run(problem.node(), threads=threads) for threads in (1, 2))
    for name in one:
        assert_same_bits(two[name], one[name], name)


def test_state_in_place():
    problem = Problem(activation="qwen", capacity=2, capture_count=(2, 0, 1))
    node = problem.node()
    expected = run(node)
    state = problem.operands()["initial_state"].copy()
    outputs = node.poisoned() | {"final_state": state}
    feeds = node.feeds() | {"initial_state": state}
    run_bound(session(node.model()), feeds, outputs)
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["", "?"], ids=["unknown dims", "unknown ranks"])
def test_shapes_may_be_unknown_at_creation(form, mark):
    problem = Problem(lengths=FORMS[form], form=form, activation="qwen", decay_per_key=True)
    node = problem.node()
    expected = run(node)
    outputs = run(node, symbolic=[mark + name for name in node.feeds()])
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)
