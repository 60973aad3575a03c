"""deltaworks::DFlash2DynamicConv against numpy: float64 for values, plain steps for bits."""

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
    session,
    type_name,
)


@dataclass
class Problem:
    lanes: int = 3
    rows_per_lane: int = 5
    taps: int = 2
    groups: int = 4
    group_size: int = 16
    stage: str = "prepare"
    arithmetic: str | None = None
    dtype: type = np.float32
    base_dtype: type | None = None
    result_dtype: type | None = None

    @property
    def rows(self):
        return self.lanes * self.rows_per_lane

    def operands(self):
        rng = np.random.default_rng(0)

        def normal(dtype, *shape):
            return rng.standard_normal(shape).astype(np.float32).astype(dtype or self.dtype)

        channels = self.groups * self.group_size
        return {
            "input": normal(None, self.rows, channels),
            "dynamic": normal(None, self.rows, 2 * self.taps * self.groups),
            "base": normal(self.base_dtype, 2, self.taps, channels),
            "residual": normal(self.result_dtype, self.rows, channels),
        }

    def node(self, **changed):
        inputs = list((self.operands() | changed).items())
        if self.stage == "prepare":
            inputs.pop()
        attributes = {
            "stage": self.stage,
            "rows_per_lane": self.rows_per_lane,
            "groups": self.groups,
        }
        if self.arithmetic:
            attributes["arithmetic"] = self.arithmetic
        output = ("output", self.result_dtype or self.dtype, inputs[0][1].shape)
        return Node("DFlash2DynamicConv", inputs, [output], attributes, domain="deltaworks")

    def expected(self, step):
        """`step` is the type that every operation rounds to."""
        operands = {name: array.astype(step) for name, array in self.operands().items()}
        stage = int(self.stage == "residual")
        rows = np.arange(self.rows)
        dynamic = operands["dynamic"].reshape(self.rows, 2, self.taps, self.groups)[:, stage]
        output = None
        for tap in range(self.taps):
            inside = rows % self.rows_per_lane >= tap
            delta = np.repeat(dynamic[inside, tap], self.group_size, axis=1)
            weight = operands["base"][stage, tap] + delta
            product = weight * operands["input"][rows[inside] - tap]
            if tap == 0:
                output = product
            else:
                output[inside] = output[inside] + product
        if stage:
            wide = np.float64 if step == np.float64 else np.float32
            residual = self.operands()["residual"].astype(wide)
            output = output.astype(wide) + residual
        return output


@pytest.mark.parametrize("stage", ["prepare", "residual"])
@pytest.mark.parametrize("taps", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_values(dtype, taps, stage):
    for group_size in (1, 5, 16):
        problem = Problem(dtype=dtype, taps=taps, stage=stage, group_size=group_size)
        output = run(problem.node())["output"]
        assert_close(output, problem.expected(np.float64), TOLERANCE[np.dtype(dtype)])


@pytest.mark.parametrize("stage", ["prepare", "residual"])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_activation_rounds_every_step(dtype, stage):
    problem = Problem(dtype=dtype, stage=stage, taps=3, arithmetic="activation")
    expected = problem.expected(dtype).astype(dtype)
    assert_same_bits(run(problem.node())["output"], expected)
    if dtype != np.float32:
        problem.arithmetic = "float32"
        assert (run(problem.node())["output"] != expected).any()


@pytest.mark.parametrize("arithmetic", ["float32", "activation"])
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=type_name)
def test_residual_may_be_float32(dtype, arithmetic):
    problem = Problem(
        dtype=dtype,
        base_dtype=BFLOAT16,
        result_dtype=np.float32,
        stage="residual",
        arithmetic=arithmetic,
    )
    output = run(problem.node())["output"]
    assert_close(output, problem.expected(np.float64), 1e-5 if arithmetic == "float32" else 2e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=type_name)
@pytest.mark.parametrize("stage", ["prepare", "residual"])
def test_base_may_be_bfloat16(stage, dtype):
    problem = Problem(dtype=dtype, base_dtype=BFLOAT16, stage=stage)
    output = run(problem.node())["output"]
    assert_close(output, problem.expected(np.float64), TOLERANCE[np.dtype(dtype)])


def test_threads_change_no_bit():
    node = Problem(lanes=40, groups=64, group_size=16, rows_per_lane=8).node()
    assert_same_bits(run(node, threads=2)["output"], run(node, threads=1)["output"])


@pytest.mark.parametrize("mark", ["", "?"], ids=["unknown dims", "unknown ranks"])
def test_shapes_may_be_unknown_at_creation(mark):
    node = Problem(stage="residual").node()
    output = run(node, symbolic=[mark + name for name in node.feeds()])["output"]
    assert_same_bits(output, run(node)["output"])


def test_no_rows():
    assert run(Problem(lanes=0).node())["output"].shape == (0, 64)


@pytest.mark.parametrize(
    "attributes, fragment",
    [
        ({"stage": "finish"}, 'stage is "finish", expected prepare or residual'),
        ({"stage": "residual"}, "residual is missing, expected it: stage is residual"),
        ({"arithmetic": "half"}, 'arithmetic is "half", expected float32 or activation'),
        ({"rows_per_lane": 0}, "rows_per_lane is 0, expected at least 1"),
        ({"rows_per_lane": 4}, "input has shape [15, 64], expected whole lanes of 4 rows"),
        ({"groups": 5}, "input has shape [15, 64], expected channels in 5 equal groups"),
        ({"groups": 8}, "dynamic has shape [15, 16], expected [15, 32]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_errors_name_the_operator(attributes, fragment):
    node = Problem().node()
    node.attributes |= attributes
    with pytest.raises(Exception) as caught:
        session(node.model())
    assert "DFlash2DynamicConv: " + fragment in str(caught.value)
