import deltaworks
import numpy as np
import pytest
from support import (
    TYPES,
    close,
    fresh_rng,
    normal,
    offsets,
    pitched,
    poison,
    same_bits,
    spans,
    type_name,
)


def reference(x, weight, bias, state, activation, dilation):
    """One sequence in float64: output [tokens, channels], final state [channels, history]."""
    x, weight, state = (a.astype(np.float64) for a in (x, weight, state))
    width = weight.shape[2]
    samples = np.concatenate([state.T, x])
    output = np.zeros_like(x)
    for token in range(len(x)):
        for tap in range(width):
            output[token] += weight[:, 0, tap] * samples[token + tap * dilation]
    if bias is not None:
        output += bias.astype(np.float64)
    if activation != "none":
        output = output / (1 + np.exp(-output))
    return output, samples[len(samples) - state.shape[1] :].T


def problem(dtype=np.float32, lengths=(5, 0, 1, 12), channels=19, width=4, dilation=1):
    rng = fresh_rng()
    history = (width - 1) * dilation
    return {
        "input": normal(rng, sum(lengths), channels, dtype=dtype),
        "weight": normal(rng, channels, 1, width, dtype=dtype),
        "cu_seqlens": offsets(*lengths),
        "bias": normal(rng, channels, dtype=dtype),
        "initial_state": normal(rng, len(lengths), channels, history, dtype=dtype),
    }


@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
@pytest.mark.parametrize(("width", "dilation"), [(1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_agrees_with_the_reference(dtype, width, dilation, activation):
    case = problem(dtype, width=width, dilation=dilation)
    result = deltaworks.varlen_causal_conv(**case, activation=activation, dilation=dilation)
    assert result.state_update is None
    for b, span in enumerate(spans(case["cu_seqlens"])):
        output, state = reference(
            case["input"][span], case["weight"], case["bias"], case["initial_state"][b],
            activation, dilation,
        )  # fmt: skip
        close(result.output[span], output)
        same_bits(result.final_state[b], state.astype(dtype))


def test_without_bias_and_state():
    case = problem()
    case["bias"][:] = 0
    case["initial_state"][:] = 0
    expected = deltaworks.varlen_causal_conv(**case)
    del case["bias"], case["initial_state"]
    result = deltaworks.varlen_causal_conv(**case)
    same_bits(result.output, expected.output)
    same_bits(result.final_state, expected.final_state)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_a_split_changes_no_bit(dtype):
    case = problem(dtype, lengths=(9,))
    whole = deltaworks.varlen_causal_conv(**case)
    first = deltaworks.varlen_causal_conv(
        **case | {"input": case["input"][:4], "cu_seqlens": offsets(4)}
    )
    second = deltaworks.varlen_causal_conv(
        **case
        | {
            "input": case["input"][4:],
            "cu_seqlens": offsets(5),
            "initial_state": first.final_state,
        }
    )
    same_bits(np.concatenate([first.output, second.output]), whole.output)
    same_bits(second.final_state, whole.final_state)


def test_packed_equals_alone():
    case = problem()
    packed = deltaworks.varlen_causal_conv(**case, threads=3)
    for b, span in enumerate(spans(case["cu_seqlens"])):
        alone = deltaworks.varlen_causal_conv(
            **case
            | {
                "input": case["input"][span],
                "cu_seqlens": offsets(span.stop - span.start),
                "initial_state": case["initial_state"][b : b + 1],
            }
        )
        same_bits(packed.output[span], alone.output)
        same_bits(packed.final_state[b], alone.final_state[0])


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_replay_equals_having_run(dtype):
    case = problem(dtype, lengths=(4, 4, 4, 4))
    counts = np.array([0, 1, 3, 4], np.int32)
    captured = deltaworks.varlen_causal_conv(
        **case, state_update_capacity=4, capture_count=np.full(4, 4, np.int32)
    )
    replayed = deltaworks.replay_conv_state(case["initial_state"], captured.state_update, counts)
    for b, count in enumerate(counts):
        run = deltaworks.varlen_causal_conv(
            **case
            | {
                "input": case["input"][4 * b : 4 * b + count],
                "cu_seqlens": offsets(count),
                "initial_state": case["initial_state"][b : b + 1],
            }
        )
        same_bits(replayed.state[b], run.final_state[0])


def test_in_place():
    case = problem()
    expected = deltaworks.varlen_causal_conv(**case)
    state, output = case["initial_state"], poison(expected.output.shape)
    result = deltaworks.varlen_causal_conv(**case, out=(output, state, None))
    assert result.output is output and result.final_state is state
    same_bits(output, expected.output)
    same_bits(state, expected.final_state)


def test_replay_in_place():
    rng = fresh_rng()
    state, update = normal(rng, 2, 3, 4), normal(rng, 2, 5, 3)
    count = np.array([2, 5], np.int32)
    expected = deltaworks.replay_conv_state(state, update, count).state
    assert deltaworks.replay_conv_state(state, update, count, out=state).state is state
    same_bits(state, expected)
    same_bits(deltaworks.replay_conv_state(state, update, count * 0, out=(None,)).state, state)


@pytest.mark.parametrize("argument", ["input", "weight", "bias", "initial_state", "cu_seqlens"])
def test_rows_may_lie_apart(argument):
    case = problem()
    expected = deltaworks.varlen_causal_conv(**case)
    result = deltaworks.varlen_causal_conv(**case | {argument: pitched(case[argument])})
    same_bits(result.output, expected.output)
    same_bits(result.final_state, expected.final_state)


def test_results_may_lie_apart():
    case = problem(lengths=(3, 4))
    capture = {"state_update_capacity": 2, "capture_count": np.array([2, 1], np.int32)}
    expected = deltaworks.varlen_causal_conv(**case, **capture)
    out = tuple(pitched(poison(array.shape)) for array in expected)
    for array, wanted in zip(
        deltaworks.varlen_causal_conv(**case, **capture, out=out), expected, strict=True
    ):
        same_bits(array, wanted)
    gaps = out[0].base
    while gaps.base is not None:
        gaps = gaps.base
    assert np.isnan(gaps[:, -3:]).all()


def test_state_pool():
    case = problem(lengths=(3, 2, 4))
    alone = deltaworks.varlen_causal_conv(**case)
    pool = poison((5, *case["initial_state"].shape[1:]))
    pool[[4, 0]] = case["initial_state"][:2]
    slots = {
        "slots_in": np.array([4, 0, -1], np.int32),
        "slots_out": np.array([4, 1, -1], np.int32),
    }
    result = deltaworks.varlen_causal_conv(**case | {"initial_state": pool}, **slots)
    same_bits(result.output[:5], alone.output[:5])
    assert not result.output[5:].any()
    expected = pool.copy()
    expected[[4, 1]] = alone.final_state[:2]
    same_bits(result.final_state, expected)
    fresh = deltaworks.varlen_causal_conv(
        **case | {"initial_state": pool}, **slots, fresh=np.array([1, 1, 0], np.int32)
    )
    case["initial_state"][:] = 0
    same_bits(fresh.output[:5], deltaworks.varlen_causal_conv(**case).output[:5])


def test_nothing_to_do():
    for lengths in [(), (0, 0)]:
        case = problem(lengths=lengths)
        result = deltaworks.varlen_causal_conv(**case)
        assert result.output.shape == (0, 19)
        same_bits(result.final_state, case["initial_state"])


def dynamic_problem(dtype, groups=4, taps=3):
    case, rng = problem(dtype, channels=24, width=2), fresh_rng()
    del case["bias"]
    tokens = len(case["input"])
    return case | {
        "kernel_delta": normal(rng, tokens, taps, groups, dtype=dtype),
        "previous_mask": rng.integers(0, 2, (tokens, 1)).astype(dtype),
        "group_size": 24 // groups,
        "delta_offset": taps - 2,
    }


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_the_dynamic_mode_rounds_every_step(dtype):
    case = dynamic_problem(dtype)
    result = deltaworks.varlen_causal_conv(**case)
    delta = np.repeat(case["kernel_delta"], case["group_size"], axis=2)
    for b, span in enumerate(spans(case["cu_seqlens"])):
        x = case["input"][span]
        previous = np.concatenate([case["initial_state"][b].T, x])[:-1]
        now = case["weight"][:, 0, 1] + delta[span, case["delta_offset"]]
        before = case["weight"][:, 0, 0] + delta[span, case["delta_offset"] + 1]
        expected = now * x + (before * previous) * case["previous_mask"][span]
        assert expected.dtype == dtype
        same_bits(result.output[span], expected)


@pytest.mark.parametrize("argument", ["kernel_delta", "previous_mask"])
def test_rows_of_the_dynamic_mode_may_lie_apart(argument):
    case = dynamic_problem(np.float32)
    expected = deltaworks.varlen_causal_conv(**case).output
    case[argument] = pitched(case[argument])
    same_bits(deltaworks.varlen_causal_conv(**case).output, expected)


def test_errors_of_the_dynamic_mode():
    case = dynamic_problem(np.float32)
    for changed, message in [
        ({"previous_mask": None}, "previous_mask is missing"),
        ({"kernel_delta": None}, "previous_mask is given"),
        ({"activation": "silu"}, "activation is silu"),
        ({"delta_offset": 2}, "kernel_delta has shape"),
        ({"group_size": 7}, "group_size is 7"),
        ({"bias": case["weight"][:, 0, 0].copy()}, "bias is given"),
    ]:
        with pytest.raises(ValueError, match=f"varlen_causal_conv: {message}"):
            deltaworks.varlen_causal_conv(**case | changed)
