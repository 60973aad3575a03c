"""The dynamic mode of VarlenCausalConvWithState: numpy steps for bits, ONNX Runtime's refusal."""

from dataclasses import dataclass

import numpy as np
import pytest
from support import (
    TYPES,
    Node,
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
    lengths: tuple = (3, 1, 0, 7)
    groups: int = 5
    group_size: int = 16
    projected_taps: int = 4
    delta_offset: int = 2
    dtype: type = np.float32
    capacity: int = 0

    @property
    def channels(self):
        return self.groups * self.group_size

    def operands(self):
        rng = np.random.default_rng(0)
        tokens = sum(self.lengths)

        def normal(*shape):
            return rng.standard_normal(shape).astype(np.float32).astype(self.dtype)

        return {
            "input": normal(tokens, self.channels),
            "weight": normal(self.channels, 1, 2),
            "cumulative_sequence_length": offsets(self.lengths),
            "bias": None,
            "initial_state": normal(len(self.lengths), self.channels, 1),
            "capture_count": np.arange(len(self.lengths), dtype=np.int32),
            "kernel_delta": normal(tokens, self.projected_taps, self.groups),
            "previous_mask": rng.integers(0, 2, (tokens, 1)).astype(self.dtype),
        }

    def node(self, **changed):
        operands = self.operands() | changed
        if not self.capacity:
            operands["capture_count"] = None
        inputs = [None if array is None else (name, array) for name, array in operands.items()]
        while inputs[-1] is None:
            inputs.pop()
        sequences = len(self.lengths)
        outputs = [
            ("output", self.dtype, operands["input"].shape),
            ("final_state", self.dtype, (sequences, self.channels, 1)),
            ("state_update", self.dtype, (sequences, self.capacity, self.channels)),
        ]
        attributes = {"group_size": self.group_size, "delta_offset": self.delta_offset}
        if self.capacity:
            attributes["state_update_capacity"] = self.capacity
        return Node("VarlenCausalConvWithState", inputs, outputs, attributes)

    def expected(self):
        """Every operation rounds to the type, as numpy's do."""
        operands = self.operands()
        rows, starts = operands["input"], operands["cumulative_sequence_length"]
        before = np.empty_like(rows)
        state = operands["initial_state"].copy()
        update = np.zeros((len(self.lengths), self.capacity, self.channels), self.dtype)
        for b, length in enumerate(self.lengths):
            if length == 0:
                continue
            first, last = starts[b], starts[b + 1] - 1
            before[first] = state[b, :, 0]
            before[first + 1 : last + 1] = rows[first:last]
            state[b, :, 0] = rows[last]
            captured = min(operands["capture_count"][b], self.capacity, length)
            update[b, :captured] = rows[first : first + captured]
        delta = np.repeat(operands["kernel_delta"], self.group_size, axis=2)
        weight, mask = operands["weight"][:, 0], operands["previous_mask"]
        now = (weight[:, 1] + delta[:, self.delta_offset]) * rows
        masked = (weight[:, 0] + delta[:, self.delta_offset + 1]) * before * mask
        return {"output": now + masked, "final_state": state, "state_update": update}


@pytest.mark.parametrize("group_size", [1, 3, 16, 64])
@pytest.mark.parametrize("capacity", [0, 2])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_every_step_rounds(dtype, capacity, group_size):
    problem = Problem(dtype=dtype, capacity=capacity, group_size=group_size)
    outputs = run(problem.node())
    for name, expected in problem.expected().items():
        assert_same_bits(outputs[name], expected, name)


@pytest.mark.parametrize("stage", ["prepare", "residual"])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_equals_dflash2_dynamic_conv(dtype, stage):
    """Blocks of one sequence, cut by the mask."""
    problem = Problem(lengths=(24,), dtype=dtype, delta_offset=2 * (stage == "residual"))
    operands = problem.operands()
    mask = (np.arange(24) % 8 > 0).astype(dtype).reshape(24, 1)
    base = np.zeros((2, 2, problem.channels), dtype)
    base[int(stage == "residual")] = operands["weight"][:, 0, ::-1].T
    inputs = [
        ("input", operands["input"]),
        ("dynamic", operands["kernel_delta"].reshape(24, -1)),
        ("base", base),
    ]
    if stage == "residual":
        inputs.append(("residual", np.full_like(operands["input"], -0.0)))
    attributes = {
        "stage": stage,
        "rows_per_lane": 8,
        "groups": problem.groups,
        "arithmetic": "activation",
    }
    output = ("output", dtype, operands["input"].shape)
    ours = Node("DFlash2DynamicConv", inputs, [output], attributes, domain="deltaworks")
    conv = problem.node(previous_mask=mask)
    assert (run(ours)["output"] == run(conv)["output"]).all()


def test_onnxruntime_has_it_on_no_cpu():
    refusals = "does not support dynamic grouped convolution|not a registered|has input size 8"
    with pytest.raises(Exception, match=refusals):
        run_stock(Problem().node())


def test_state_in_place():
    node = Problem().node()
    expected = run(node)
    state = Problem().operands()["initial_state"].copy()
    feeds, outputs = node.feeds() | {"initial_state": state}, node.poisoned()
    run_bound(session(node.model()), feeds, outputs | {"final_state": state})
    assert_same_bits(state, expected["final_state"])
    assert_same_bits(outputs["output"], expected["output"])


@pytest.mark.parametrize("mark", ["", "?"], ids=["unknown dims", "unknown ranks"])
def test_shapes_may_be_unknown_at_creation(mark):
    node = Problem(capacity=2).node()
    expected = run(node, threads=2)
    outputs = run(node, symbolic=[mark + name for name in node.feeds()])
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


@pytest.mark.parametrize(
    "attributes, fragment",
    [
        ({"activation": "silu"}, "activation is silu, expected none: kernel_delta is given"),
        ({"dilation": 2}, "dilation is 2, expected 1: kernel_delta is given"),
        ({"group_size": 0}, "group_size is 0, expected at least 1"),
        ({"group_size": 3}, "group_size is 3, expected a divisor of 80"),
        ({"group_size": 8}, "kernel_delta has shape [11, 4, 5], expected [11, 4, 10]"),
        ({"delta_offset": -1}, "delta_offset is -1, expected at least 0"),
        ({"delta_offset": 3}, "kernel_delta has shape [11, 4, 5], expected 2 taps from"),
    ],
    ids=str,
)
def test_attributes(attributes, fragment):
    node = Problem().node()
    node.attributes |= attributes
    with pytest.raises(Exception) as caught:
        session(node.model())
    assert "VarlenCausalConvWithState: " + fragment in str(caught.value)


def test_operands():
    def refusal(**changed):
        with pytest.raises(Exception) as caught:
            session(Problem().node(**changed).model())
        return str(caught.value)

    assert "previous_mask is missing, expected it" in refusal(previous_mask=None)
    assert "previous_mask is given, expected none" in refusal(kernel_delta=None)
    assert "bias is given, expected none" in refusal(bias=np.zeros(80, np.float32))
    alone = refusal(kernel_delta=None, previous_mask=None)
    assert "group_size is 16, expected 1: kernel_delta is missing" in alone
