import deltaworks
import numpy as np
import pytest
from support import (
    BFLOAT16,
    TYPES,
    close,
    fresh_rng,
    normal,
    offsets,
    pitched,
    poison,
    same_bits,
    type_name,
)


def problem(*shape, dtype=np.float32):
    rng = fresh_rng()
    return {
        "update_logits": normal(rng, *shape, dtype=dtype, scale=3),
        "decay_inputs": normal(rng, *shape, dtype=dtype, scale=3),
        "a_log": normal(rng, shape[-1]),
        "dt_bias": normal(rng, shape[-1], scale=2),
    }


def reference(case):
    wide = {name: array.astype(np.float64) for name, array in case.items()}
    softplus = np.logaddexp(wide["decay_inputs"] + wide["dt_bias"], 0)
    return 1 / (1 + np.exp(-wide["update_logits"])), -np.exp(wide["a_log"]) * softplus


@pytest.mark.parametrize("shape", [(12,), (7, 48), (2, 3, 5), (2, 1, 3, 5), (1, 2, 1, 3, 5)])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_agrees_with_the_reference(dtype, shape):
    case = problem(*shape, dtype=dtype)
    rates, logs = reference(case)
    result = deltaworks.gated_delta_rates(**case, threads=2)
    assert result.update_rates.dtype == dtype
    close(result.update_rates, rates)
    close(result.decay_factors, np.exp(logs))
    close(deltaworks.gated_delta_rates(**case, log_decay=True).decay_factors, logs)


def test_arithmetic_of_the_activations_rounds_two_steps():
    case = problem(40, 48, dtype=BFLOAT16)
    total = (case["decay_inputs"].astype(np.float32) + case["dt_bias"]).astype(BFLOAT16)
    softplus = np.logaddexp(total.astype(np.float64), 0).astype(BFLOAT16).astype(np.float64)
    result = deltaworks.gated_delta_rates(**case, arithmetic="activation", log_decay=1)
    expected = -np.exp(case["a_log"].astype(np.float64)) * softplus
    assert np.mean(np.abs(result.decay_factors - expected) < 1e-6 * np.abs(expected)) > 0.99


def test_gated_delta_net_computes_the_same_bits():
    rng, case = fresh_rng(), problem(9, 4)
    operands = [normal(rng, 9, 2, 16), normal(rng, 9, 2, 16), normal(rng, 9, 4, 8), offsets(4, 5)]
    inside = deltaworks.gated_delta_net(
        *operands,
        decay=case["decay_inputs"],
        beta=case["update_logits"],
        a_log=case["a_log"],
        dt_bias=case["dt_bias"],
        gate_activation="softplus",
        beta_activation="sigmoid",
        qk_l2_norm=True,
    )
    beta, decay = deltaworks.gated_delta_rates(**case, log_decay=True)
    outside = deltaworks.gated_delta_net(*operands, decay=decay, beta=beta, qk_l2_norm=True)
    same_bits(outside.output, inside.output)
    same_bits(outside.final_state, inside.final_state)


def test_rows_may_lie_apart():
    case = problem(6, 5)
    expected = deltaworks.gated_delta_rates(**case)
    out = (pitched(poison((6, 5))), pitched(poison((6, 5))))
    for argument in ("update_logits", "decay_inputs"):
        case[argument] = pitched(case[argument])
    result = deltaworks.gated_delta_rates(**case, out=out)
    assert result.update_rates is out[0] and result.decay_factors is out[1]
    same_bits(result.update_rates, expected.update_rates)
    same_bits(result.decay_factors, expected.decay_factors)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"a_log": np.zeros(4, np.float32)}, "a_log has shape [4], expected [5]"),
        ({"arithmetic": "half"}, 'arithmetic is "half", expected float32 or activation'),
        ({"decay_inputs": np.zeros((6, 5), np.float16)}, "decay_inputs has type float16"),
        ({"out": (np.zeros((6, 4), np.float32), None)}, "update_rates has shape [6, 4]"),
    ],
)
def test_errors_name_the_argument(changed, message):
    with pytest.raises(ValueError) as caught:
        deltaworks.gated_delta_rates(**(problem(6, 5) | changed))
    assert "gated_delta_rates: " + message in str(caught.value)


def test_gaps_in_more_than_two_dims_are_refused():
    case = problem(2, 3, 5)
    case["decay_inputs"] = pitched(case["decay_inputs"])
    with pytest.raises(ValueError, match="decay_inputs has gaps"):
        deltaworks.gated_delta_rates(**case)
