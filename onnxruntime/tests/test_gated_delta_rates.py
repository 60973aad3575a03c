"""deltaworks::GatedDeltaRates against numpy in float64, and against GatedDeltaNet's own gates."""

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
    offsets,
    run,
    session,
    type_name,
)


@dataclass
class Problem:
    shape: tuple = (5, 48)
    dtype: type = np.float32
    arithmetic: str | None = None
    log_decay: int | None = None

    def operands(self):
        rng = np.random.default_rng(0)
        heads = self.shape[-1]
        return {
            "update_logits": (3 * rng.standard_normal(self.shape)).astype(self.dtype),
            "decay_inputs": (3 * rng.standard_normal(self.shape)).astype(self.dtype),
            "a_log": rng.standard_normal(heads).astype(np.float32),
            "dt_bias": (2 * rng.standard_normal(heads)).astype(np.float32),
        }

    def node(self, **changed):
        attributes = {"arithmetic": self.arithmetic, "log_decay": self.log_decay}
        return Node(
            "GatedDeltaRates",
            list((self.operands() | changed).items()),
            [("update_rates", self.dtype, self.shape), ("decay_factors", np.float32, self.shape)],
            {name: value for name, value in attributes.items() if value is not None},
            domain="deltaworks",
        )

    def expected(self):
        """Both outputs in float64; with `arithmetic` activation two steps round to the type."""
        step = self.dtype if self.arithmetic == "activation" else np.float64
        operands = {name: array.astype(np.float64) for name, array in self.operands().items()}
        total = (operands["decay_inputs"] + operands["dt_bias"]).astype(step).astype(np.float64)
        softplus = np.logaddexp(total, 0).astype(step).astype(np.float64)
        log_decay = -np.exp(operands["a_log"]) * softplus
        return {
            "update_rates": 1 / (1 + np.exp(-operands["update_logits"])),
            "decay_factors": log_decay if self.log_decay else np.exp(log_decay),
        }


@pytest.mark.parametrize("log_decay", [None, 0, 1])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_values(dtype, log_decay):
    problem = Problem(dtype=dtype, log_decay=log_decay)
    outputs, expected = run(problem.node()), problem.expected()
    assert_close(outputs["update_rates"], expected["update_rates"], TOLERANCE[np.dtype(dtype)])
    assert_close(outputs["decay_factors"], expected["decay_factors"], 1e-5)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_activation_rounds_two_steps(dtype):
    """The sum and softplus in T: nearly everywhere numpy's roundings are found again."""
    problem = Problem(dtype=dtype, arithmetic="activation", log_decay=1, shape=(50, 48))
    actual, expected = run(problem.node())["decay_factors"], problem.expected()["decay_factors"]
    off = np.abs(actual - expected) / np.abs(expected)
    assert np.mean(off < 1e-6) > 0.99
    if dtype != np.float32:
        problem.arithmetic = "float32"
        assert (run(problem.node())["decay_factors"] != actual).mean() > 0.5


@pytest.mark.parametrize("shape", [(48,), (7, 48), (2, 3, 48), (2, 1, 3, 48), (2, 1, 3, 1, 48)])
def test_any_rank(shape):
    outputs = run(Problem(shape=shape, dtype=BFLOAT16).node())
    flat = run(Problem(shape=(int(np.prod(shape[:-1])), 48), dtype=BFLOAT16).node())
    for name, array in flat.items():
        assert_same_bits(outputs[name], array.reshape(shape))


def test_gated_delta_net_computes_the_same():
    rng = np.random.default_rng(1)
    rates = Problem(shape=(9, 4), log_decay=1)
    operands = rates.operands()
    computed = run(rates.node())

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    common = [
        ("query", normal(9, 2, 16)),
        ("key", normal(9, 2, 16)),
        ("value", normal(9, 4, 8)),
        ("cu_seqlens", offsets([4, 5])),
    ]
    state = ("initial_state", normal(2, 4, 8, 16))
    outputs = [
        ("output", np.float32, (9, 4, 8)),
        ("final_state", np.float32, (2, 4, 8, 16)),
    ]

    def delta_net(decay, beta, *parameters, **attributes):
        inputs = [*common, ("decay", decay), ("beta", beta), state, *parameters]
        return run(Node("GatedDeltaNet", inputs, outputs, attributes | {"qk_l2_norm": 1}))

    inside = delta_net(
        operands["decay_inputs"],
        operands["update_logits"],
        ("a_log", operands["a_log"]),
        ("dt_bias", operands["dt_bias"]),
        gate_activation="softplus",
        beta_activation="sigmoid",
    )
    outside = delta_net(computed["decay_factors"], computed["update_rates"])
    for name in inside:
        assert_same_bits(outside[name], inside[name], name)


def test_threads_change_no_bit():
    node = Problem(shape=(1000, 48), dtype=np.float16).node()
    one, two = run(node, threads=1), run(node, threads=2)
    for name in one:
        assert_same_bits(two[name], one[name])


@pytest.mark.parametrize(
    "symbolic",
    [
        ["update_logits", "decay_inputs", "a_log", "dt_bias"],
        ["?update_logits", "?decay_inputs", "?a_log", "?dt_bias"],
        ["?update_logits"],
        ["?decay_inputs"],
    ],
    ids="-".join,
)
def test_shapes_may_be_unknown_at_creation(symbolic):
    node = Problem(shape=(2, 3, 16)).node()
    outputs, expected = run(node, symbolic=symbolic), run(node)
    for name in expected:
        assert_same_bits(outputs[name], expected[name])


def test_no_tokens():
    assert run(Problem(shape=(2, 0, 16)).node())["decay_factors"].shape == (2, 0, 16)


@pytest.mark.parametrize(
    "attributes, changed, fragment",
    [
        ({"arithmetic": "half"}, {}, 'arithmetic is "half", expected float32 or activation'),
        ({"log_decay": 2}, {}, "log_decay is 2, expected 0 or 1"),
        ({}, {"a_log": 47}, "a_log has shape [47], expected [48]"),
        ({}, {"dt_bias": 49}, "dt_bias has shape [49], expected [48]"),
        ({}, {"decay_inputs": (6, 48)}, "decay_inputs has shape [6, 48], expected [5, 48]"),
        ({}, {"decay_inputs": (48,)}, "decay_inputs has rank 1 (shape [48]), expected rank 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_errors_name_the_operator(attributes, changed, fragment):
    node = Problem().node(**{name: np.zeros(shape, np.float32) for name, shape in changed.items()})
    node.attributes |= attributes
    with pytest.raises(Exception) as caught:
        session(node.model())
    assert "GatedDeltaRates: " + fragment in str(caught.value)
