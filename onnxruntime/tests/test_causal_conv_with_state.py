"""CausalConvWithState beside ONNX Runtime's own kernel, and its laws to the bit."""

from dataclasses import dataclass

import numpy as np
import pytest
from support import (
    BFLOAT16,
    TOLERANCE,
    TYPES,
    Node,
    assert_close,
    assert_same_bits,
    run,
    run_bound,
    run_stock,
    session,
    type_name,
)


@dataclass
class Problem:
    sequences: int = 2
    channels: int = 5
    length: int = 7
    width: int = 4
    dilation: int = 1
    dtype: type = np.float32
    activation: str | None = "silu"
    bias: bool = True
    past: bool = True
    channels_last: bool = False
    trailing: tuple = ()  # dims that count the channels together, channels last

    @property
    def history(self):
        return (self.width - 1) * self.dilation

    def extents(self, positions):
        if self.channels_last:
            return (self.sequences, positions, *(self.trailing or (self.channels,)))
        return (self.sequences, self.channels, positions)

    def operands(self):
        rng = np.random.default_rng(0)

        def normal(*shape):
            return rng.standard_normal(shape).astype(np.float32).astype(self.dtype)

        return {
            "input": normal(*self.extents(self.length)),
            "weight": normal(self.channels, 1, self.width),
            "bias": normal(self.channels),
            "past_state": normal(*self.extents(self.history)),
        }

    def node(self, **changed):
        operands = self.operands() | changed
        inputs = list(operands.items())
        if not self.past:
            inputs[3] = None
        if not self.bias:
            inputs[2] = None
        while inputs[-1] is None:
            inputs.pop()
        outputs = [
            ("output", self.dtype, operands["input"].shape),
            ("present_state", self.dtype, self.extents(self.history)),
        ]
        attributes = {"activation": self.activation, "dilation": self.dilation}
        attributes["channels_last"] = int(self.channels_last)
        defaults = {"activation": None, "dilation": 1, "channels_last": 0}
        attributes = {name: x for name, x in attributes.items() if x != defaults[name]}
        return Node("CausalConvWithState", inputs, outputs, attributes)


def compare(problem):
    """With ONNX Runtime's kernel, which has float32, and float16 through casts."""
    node = problem.node()
    ours, stock = run(node), run_stock(node)
    assert_close(ours["output"], stock["output"], TOLERANCE[np.dtype(problem.dtype)], "output")
    assert_same_bits(ours["present_state"], stock["present_state"], "present_state")


@pytest.mark.parametrize("channels_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("activation", [None, "none", "silu", "swish"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=type_name)
def test_matches_onnxruntime(dtype, activation, channels_last):
    for bias in (True, False):
        for past in (True, False):
            options = {"bias": bias, "past": past, "channels_last": channels_last}
            compare(Problem(dtype=dtype, activation=activation, **options))


@pytest.mark.parametrize("channels_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8])
def test_widths_and_lengths(width, dilation, channels_last):
    for length in (1, 2, 9, 40):
        compare(Problem(width=width, dilation=dilation, length=length, channels_last=channels_last))


@pytest.mark.parametrize("channels_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("channels", [1, 16, 33, 513])
def test_channels(channels, channels_last):
    compare(Problem(channels=channels, channels_last=channels_last))


@pytest.mark.parametrize("trailing", [(2, 3), (2, 3, 4)])
def test_channels_over_several_last_dims(trailing):
    channels = int(np.prod(trailing))
    compare(Problem(channels=channels, trailing=trailing, channels_last=True))


@pytest.mark.parametrize("channels_last", [False, True], ids=["first", "last"])
def test_bfloat16_is_float32_rounded(channels_last):
    """ONNX Runtime has no bfloat16 kernel on the CPU: compare with its float32 one."""
    problem = Problem(dtype=BFLOAT16, channels_last=channels_last)
    operands = {name: x.astype(np.float32) for name, x in problem.operands().items()}
    expected = run_stock(Problem(channels_last=channels_last).node(**operands))
    ours = run(problem.node())
    assert_close(ours["output"], expected["output"], TOLERANCE[np.dtype(BFLOAT16)])
    assert_same_bits(ours["present_state"], expected["present_state"].astype(BFLOAT16))


@pytest.mark.parametrize("channels_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_splits_change_no_bit(dtype, channels_last):
    problem = Problem(dtype=dtype, length=40, channels=33, channels_last=channels_last)
    axis = 1 if channels_last else 2
    whole, operands = run(problem.node()), problem.operands()
    state = operands["past_state"]
    for first, last in ((0, 1), (1, 2), (2, 4), (4, 21), (21, 40)):
        cut = [slice(None)] * 3
        cut[axis] = slice(first, last)
        part = Problem(
            dtype=dtype, length=last - first, channels=33, channels_last=channels_last
        ).node(
            input=np.ascontiguousarray(operands["input"][tuple(cut)]),
            weight=operands["weight"],
            bias=operands["bias"],
            past_state=state,
        )
        outputs = run(part)
        assert_same_bits(outputs["output"], np.ascontiguousarray(whole["output"][tuple(cut)]))
        state = outputs["present_state"]
    assert_same_bits(state, whole["present_state"])


@pytest.mark.parametrize("channels_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("sequences, length", [(2, 0), (0, 3), (0, 0)])
def test_empty_calls_hand_the_state_on(sequences, length, channels_last):
    problem = Problem(sequences=sequences, length=length, channels_last=channels_last)
    assert_same_bits(run(problem.node())["present_state"], problem.operands()["past_state"])
    problem.past = False
    assert not run(problem.node())["present_state"].any()


@pytest.mark.parametrize("channels_last", [False, True], ids=["first", "last"])
def test_threads_change_no_bit(channels_last):
    node = Problem(channels=1000, length=140, channels_last=channels_last).node()
    one, two = run(node, threads=1), run(node, threads=2)
    for name in one:
        assert_same_bits(two[name], one[name], name)


@pytest.mark.parametrize("channels_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_state_in_place(length, channels_last):
    problem = Problem(length=length, channels_last=channels_last)
    node = problem.node()
    expected = run(node)
    state = problem.operands()["past_state"].copy()
    outputs = node.poisoned() | {"present_state": state}
    run_bound(session(node.model()), node.feeds() | {"past_state": state}, outputs)
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


@pytest.mark.parametrize("mark", ["", "?"], ids=["unknown dims", "unknown ranks"])
@pytest.mark.parametrize("trailing", [(), (2, 3)], ids=["flat", "spread"])
def test_shapes_may_be_unknown_at_creation(trailing, mark):
    channels = int(np.prod(trailing)) if trailing else 5
    node = Problem(channels=channels, trailing=trailing, channels_last=True).node()
    expected = run(node)
    outputs = run(node, symbolic=[mark + name for name in node.feeds()])
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


@pytest.mark.parametrize(
    "attributes, fragment",
    [
        ({"activation": "gelu"}, 'activation is "gelu", expected none, silu or swish'),
        ({"dilation": 0}, "dilation is 0, expected at least 1"),
        ({"dilation": 2}, "past_state has shape [2, 5, 3], expected [2, 5, 6]"),
        ({"channels_last": 1}, "weight has shape [5, 1, 4], expected [7, 1, 4]"),
        ({"ndim": 2}, "ndim is 2, expected 1: other values are not available on the CPU"),
        ({"state_window": 2}, "state_window is 2, expected 0"),
        ({"state_update_capacity": 3}, "state_update_capacity is 3, expected 0"),
        ({"state_length": 9}, "state_length is 9, expected 0"),
        ({"state_channels_last": 1}, "state_channels_last is 1, expected -1"),
        ({"input_channels": 2}, "input_channels is 2, expected 0"),
        ({"input_channel_offset": 2}, "input_channel_offset is 2, expected 0"),
    ],
    ids=str,
)
def test_wrong_attributes(attributes, fragment):
    node = Problem().node()
    node.attributes |= attributes
    with pytest.raises(Exception, match="CausalConvWithState: ") as caught:
        session(node.model())
    assert fragment in str(caught.value)


def test_a_third_output_is_refused():
    node = Problem(channels_last=True).node()
    node.outputs.append(("state_update", np.float32, (2, 0, 5)))
    with pytest.raises(Exception, match="CausalConvWithState: state_update is asked for"):
        session(node.model())


def test_wrong_shapes_at_the_run_write_nothing():
    node = Problem().node(weight=np.zeros((4, 1, 4), np.float32))
    running = session(node.model(symbolic=node.feeds()))
    outputs = node.poisoned()
    with pytest.raises(Exception, match="CausalConvWithState: weight has shape"):
        run_bound(running, node.feeds(), outputs)
    for name, untouched in node.poisoned().items():
        assert_same_bits(outputs[name], untouched, name)
