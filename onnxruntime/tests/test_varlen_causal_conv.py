"""VarlenCausalConvWithState beside ONNX Runtime's own kernel, and its laws to the bit."""

from dataclasses import dataclass

import numpy as np
import pytest
from support import (
    TOLERANCE,
    TYPES,
    Node,
    assert_close,
    assert_same_bits,
    offsets,
    run,
    run_bound,
    run_stock,
    session,
    type_name,
)


@dataclass
class Problem:
    lengths: tuple = (3, 1, 7)
    channels: int = 5
    width: int = 4
    dilation: int = 1
    dtype: type = np.float32
    activation: str | None = "silu"
    bias: bool = True
    capacity: int = 0
    capture_count: tuple = ()

    @property
    def history(self):
        return (self.width - 1) * self.dilation

    def operands(self):
        rng = np.random.default_rng(0)

        def normal(*shape):
            return rng.standard_normal(shape).astype(np.float32).astype(self.dtype)

        return {
            "input": normal(sum(self.lengths), self.channels),
            "weight": normal(self.channels, 1, self.width),
            "cumulative_sequence_length": offsets(self.lengths),
            "bias": normal(self.channels),
            "initial_state": normal(len(self.lengths), self.channels, self.history),
            "capture_count": np.array(self.capture_count, np.int32),
        }

    def node(self, *, outputs=("output", "final_state", "state_update"), **changed):
        operands = self.operands() | changed
        inputs = list(operands.items())
        if not self.bias:
            inputs[3] = None
        if not self.capacity:
            inputs.pop()
        sequences = len(self.lengths)
        all_outputs = [
            ("output", self.dtype, operands["input"].shape),
            ("final_state", self.dtype, (sequences, self.channels, self.history)),
            ("state_update", self.dtype, (sequences, self.capacity, self.channels)),
        ]
        kept = [output if output[0] in outputs else None for output in all_outputs]
        while kept[-1] is None:
            kept.pop()
        attributes = {}
        if self.activation:
            attributes["activation"] = self.activation
        if self.dilation != 1:
            attributes["dilation"] = self.dilation
        if self.capacity:
            attributes["state_update_capacity"] = self.capacity
        return Node("VarlenCausalConvWithState", inputs, kept, attributes)


def compare(problem):
    node = problem.node()
    ours, stock = run(node), run_stock(node)
    assert_close(ours["output"], stock["output"], TOLERANCE[np.dtype(problem.dtype)], "output")
    assert_same_bits(ours["final_state"], stock["final_state"], "final_state")
    assert_same_bits(ours["state_update"], stock["state_update"], "state_update")


@pytest.mark.parametrize("activation", [None, "none", "silu", "swish"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_matches_onnxruntime(dtype, bias, activation):
    compare(Problem(dtype=dtype, bias=bias, activation=activation))


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_widths(dtype, width, dilation):
    compare(Problem(dtype=dtype, width=width, dilation=dilation, lengths=(1, 12, 2, 5)))


@pytest.mark.parametrize("channels", [1, 16, 33, 513])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_channels(dtype, channels):
    compare(Problem(dtype=dtype, channels=channels, lengths=(5, 2, 40, 1, 1)))


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_capture(dtype):
    problem = Problem(dtype=dtype, lengths=(10, 5, 1, 8), capacity=8, capture_count=(-1, 0, 3, 9))
    compare(problem)
    # A prefix of the captured rows, shifted into the old state, is the state after that prefix.
    operands, update = problem.operands(), run(problem.node())["state_update"]
    for count in range(9):
        joined = np.concatenate([operands["initial_state"][3], update[3, :count].T], axis=1)
        start = sum(problem.lengths[:3])
        alone = Problem(dtype=dtype, lengths=(count,))
        state = run(
            alone.node(
                input=operands["input"][start : start + count],
                weight=operands["weight"],
                bias=operands["bias"],
                initial_state=operands["initial_state"][3:4],
            )
        )["final_state"]
        assert_same_bits(state[0], joined[:, joined.shape[1] - 3 :], f"{count} tokens")


@pytest.mark.parametrize("lengths", [(0, 3, 0), (0, 0), ()])
def test_empty_sequences_hand_their_state_on(lengths):
    problem = Problem(lengths=lengths)
    outputs = run(problem.node())
    for sequence, length in enumerate(lengths):
        if length == 0:
            initial = problem.operands()["initial_state"][sequence]
            assert_same_bits(outputs["final_state"][sequence], initial)


def test_threads_change_no_bit():
    node = Problem(channels=1000, lengths=(40, 1, 130)).node()
    one, two = run(node, threads=1), run(node, threads=2)
    for name in one:
        assert_same_bits(two[name], one[name], name)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
@pytest.mark.parametrize("lengths", [(3, 1, 7), (1, 1, 1)])
def test_state_in_place(lengths, dtype):
    problem = Problem(dtype=dtype, lengths=lengths)
    node = problem.node()
    expected = run(node)
    state = problem.operands()["initial_state"].copy()
    outputs = node.poisoned() | {"final_state": state}
    feeds = node.feeds() | {"initial_state": state}
    run_bound(session(node.model()), feeds, outputs)
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


def test_outputs_may_be_left_out():
    problem = Problem(capacity=2, capture_count=(1, 1, 1))
    everything = run(problem.node())
    for kept in (("output",), ("output", "final_state"), ("output", "state_update")):
        outputs = run(problem.node(outputs=kept))
        assert set(outputs) == set(kept)
        for name in kept:
            assert_same_bits(outputs[name], everything[name], name)


@pytest.mark.parametrize("mark", ["", "?"], ids=["unknown dims", "unknown ranks"])
def test_shapes_may_be_unknown_at_creation(mark):
    node = Problem().node()
    expected = run(node)
    outputs = run(node, symbolic=[mark + name for name in node.feeds()])
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)
