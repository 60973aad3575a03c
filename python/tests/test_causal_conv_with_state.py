import deltaworks
import numpy as np
import pytest
from support import TYPES, close, fresh_rng, normal, offsets, same_bits, type_name


def problem(dtype=np.float32, channels=7, length=9, width=4, dilation=1):
    rng, history = fresh_rng(), (width - 1) * dilation
    return {
        "input": normal(rng, 2, channels, length, dtype=dtype),
        "weight": normal(rng, channels, 1, width, dtype=dtype, scale=0.5),
        "bias": normal(rng, channels, dtype=dtype),
        "past_state": normal(rng, 2, channels, history, dtype=dtype),
    }


def reference(case, dilation):
    wide = {name: array.astype(np.float64) for name, array in case.items()}
    x = np.concatenate([wide["past_state"], wide["input"]], axis=2)
    length, width = case["input"].shape[2], case["weight"].shape[2]
    acc = np.zeros(case["input"].shape) + wide["bias"][:, None]
    for j in range(width):
        acc += wide["weight"][:, 0, j, None] * x[:, :, j * dilation : j * dilation + length]
    return acc / (1 + np.exp(-acc))


def last(case):
    """The same call with channels last."""
    swapped = {name: np.ascontiguousarray(case[name].swapaxes(1, 2)) for name in STATEFUL}
    return case | swapped | {"channels_last": True}


STATEFUL = ("input", "past_state")


@pytest.mark.parametrize("width, dilation", [(4, 1), (3, 2), (1, 1), (6, 3)])
@pytest.mark.parametrize("length", [1, 2, 9, 40])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_agrees_with_the_reference(dtype, length, width, dilation):
    case = problem(dtype, length=length, width=width, dilation=dilation)
    options = {"activation": "silu", "dilation": dilation}
    result = deltaworks.causal_conv_with_state(**case, **options, threads=2)
    close(result.output, reference(case, dilation))
    joined = np.concatenate([case["past_state"], case["input"]], axis=2)
    same_bits(result.present_state, np.ascontiguousarray(joined[:, :, length:]))
    other = deltaworks.causal_conv_with_state(**last(case), **options)
    same_bits(np.ascontiguousarray(other.output.swapaxes(1, 2)), result.output)
    same_bits(np.ascontiguousarray(other.present_state.swapaxes(1, 2)), result.present_state)


def test_the_bits_are_those_of_the_packed_convolution():
    case = problem()
    ours = deltaworks.causal_conv_with_state(**case, activation="silu")
    rows = np.ascontiguousarray(case["input"].swapaxes(1, 2)).reshape(18, 7)
    packed = deltaworks.varlen_causal_conv(
        rows,
        case["weight"],
        offsets(9, 9),
        bias=case["bias"],
        initial_state=case["past_state"],
        activation="silu",
    )
    same_bits(np.ascontiguousarray(ours.output.swapaxes(1, 2)).reshape(18, 7), packed.output)
    same_bits(ours.present_state, packed.final_state)


def test_state_in_place_and_left_out():
    case = problem()
    expected = deltaworks.causal_conv_with_state(**case)
    state = case["past_state"]
    result = deltaworks.causal_conv_with_state(**case, out=(None, state))
    assert result.present_state is state
    same_bits(state, expected.present_state)
    zeros = case | {"past_state": np.zeros_like(state)}
    fresh = case | {"past_state": None}
    for mine, theirs in zip(
        deltaworks.causal_conv_with_state(**fresh),
        deltaworks.causal_conv_with_state(**zeros),
        strict=True,
    ):
        same_bits(mine, theirs)


def test_errors_name_the_argument():
    case = problem()
    with pytest.raises(ValueError, match="^causal_conv_with_state: dilation is 0, expected"):
        deltaworks.causal_conv_with_state(**case, dilation=0)
    with pytest.raises(ValueError, match=r"^causal_conv_with_state: weight has shape \[7, 1, 4\]"):
        deltaworks.causal_conv_with_state(**case, channels_last=True)
