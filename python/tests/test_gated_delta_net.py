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
    spans,
)

from support import type_name  # isort: skip

HEADS = {"key_heads": 2, "value_heads": 4, "key_dim": 24, "value_dim": 10}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(case, b, span, update_rule="gated_delta", gate="none", qk_l2_norm=False):
    """One sequence in float64: output [tokens, value_heads, value_dim], state."""
    q, k, v, decay, beta = (
        None if case.get(name) is None else case[name][span].astype(np.float64)
        for name in ("query", "key", "value", "decay", "beta")
    )
    state = case["initial_state"][b].astype(np.float64)
    if qk_l2_norm:
        epsilon = 1e-6 if gate == "sigmoid" else 1e-12
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + epsilon) for x in (q, k))
    if gate != "none":
        a_log, dt_bias = case["a_log"], case["dt_bias"]
        if decay.ndim == 3:
            a_log = a_log[:, None]
        shifted = decay + dt_bias.reshape(decay.shape[1:])
        decay = (
            -np.exp(a_log) * np.logaddexp(shifted, 0)
            if gate == "softplus"
            else -5 * sigmoid(np.exp(a_log) * shifted)
        )
        beta = sigmoid(beta)
    output, share = np.zeros(v.shape), v.shape[1] // k.shape[1]
    for token in range(len(v)):
        for head in range(v.shape[1]):
            s, key = state[head], k[token, head // share]
            a = 1 if decay is None else np.exp(decay[token, head])
            u = v[token, head] * (1 if beta is None else beta[token, head])
            if update_rule in ("delta", "gated_delta"):
                u = u - (1 if beta is None else beta[token, head]) * ((a * s) @ key)
            state[head] = a * s + np.outer(u, key)
            output[token, head] = state[head] @ q[token, head // share] / np.sqrt(len(key))
    return output, state


def problem(dtype=np.float32, lengths=(5, 0, 1, 9), gate_dtype=np.float32, per_key=False):
    rng = fresh_rng()
    n, hk, hv, k, v = sum(lengths), *HEADS.values()
    key = normal(rng, n, hk, k)
    key /= np.sqrt((key**2).sum(-1, keepdims=True))
    return {
        "query": normal(rng, n, hk, k, dtype=dtype),
        "key": key.astype(dtype),
        "value": normal(rng, n, hv, v, dtype=dtype),
        "cu_seqlens": offsets(*lengths),
        "decay": -rng.exponential(0.3, (n, hv, k) if per_key else (n, hv)).astype(gate_dtype),
        "beta": rng.uniform(0, 1, (n, hv)).astype(gate_dtype),
        "initial_state": normal(rng, len(lengths), hv, v, k),
    }


def agree(case, **options):
    result = deltaworks.gated_delta_net(**case, **options)
    known = {"update_rule", "qk_l2_norm"} & set(options)
    chosen = {name: options[name] for name in known}
    chosen["gate"] = options.get("gate_activation", "none")
    for b, span in enumerate(spans(case["cu_seqlens"])):
        output, state = reference(case, b, span, **chosen)
        close(result.output[span], output)
        close(result.final_state[b], state)


@pytest.mark.parametrize("per_key", [False, True], ids=["per_head", "per_key"])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_agrees_with_the_reference(dtype, per_key):
    agree(problem(dtype, per_key=per_key))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=type_name)
def test_gates_may_have_the_type_of_the_operands(dtype):
    agree(problem(dtype, gate_dtype=dtype))


@pytest.mark.parametrize("rule", ["linear", "gated", "delta"])
def test_update_rules(rule):
    case = problem()
    if rule in ("linear", "delta"):
        case["decay"] = None
    agree(case, update_rule=rule)


@pytest.mark.parametrize("dt_bias", ["per_head", "per_key", "flat"])
@pytest.mark.parametrize("gate", ["softplus", "sigmoid"])
def test_gates(gate, dt_bias):
    case, rng = problem(per_key=dt_bias != "per_head"), fresh_rng()
    case["decay"] = normal(rng, *case["decay"].shape)
    case["beta"] = normal(rng, *case["beta"].shape)
    case["a_log"] = normal(rng, HEADS["value_heads"], scale=0.5)
    shape = {"per_head": (4,), "per_key": (4, 24), "flat": (96,)}[dt_bias]
    case["dt_bias"] = normal(rng, *shape)
    agree(case, gate_activation=gate, beta_activation="sigmoid", qk_l2_norm=True)
    name = {"softplus": "qwen", "sigmoid": "kda"}[gate]
    options = {"beta_activation": "sigmoid", "qk_l2_norm": 1}
    same_bits(
        deltaworks.gated_delta_net(**case, gate_activation=name, **options).output,
        deltaworks.gated_delta_net(**case, gate_activation=gate, **options).output,
    )


def test_golden_values():
    def row(*values, dims=3):
        return np.array(values, np.float32).reshape((1,) * (dims - 1) + (-1,))

    result = deltaworks.gated_delta_net(
        row(0, 1), row(1, 0), row(5, 6), offsets(1), decay=row(np.log(0.5), dims=2),
        beta=row(1, dims=2), scale=1.0,
        initial_state=np.array([[[[1, 2], [3, 4]]]], np.float32),
    )  # fmt: skip
    same_bits(result.final_state, np.array([[[[5, 1], [6, 2]]]], np.float32))
    same_bits(result.output, row(1, 2))


def packed_rows(case):
    tokens = len(case["value"])
    parts = [case[name].reshape(tokens, -1) for name in ("query", "key", "value")]
    return np.concatenate(parts, axis=1)


def test_forms_of_the_operands_give_the_same_bits():
    case = problem(lengths=(4, 4, 4))
    expected = deltaworks.gated_delta_net(**case)
    rows = packed_rows(case)
    one_matrix = case | {
        "query": rows[:, :48].reshape(12, 2, 24, copy=False),
        "key": rows[:, 48:96].reshape(12, 2, 24, copy=False),
        "value": rows[:, 96:].reshape(12, 4, 10, copy=False),
    }
    packed = case | {"query": rows, "key": None, "value": None}
    uniform = case | {"cu_seqlens": None}
    by_sequence = {
        name: array if name == "initial_state" else array.reshape(3, 4, *array.shape[1:])
        for name, array in case.items()
        if name != "cu_seqlens"
    }
    packed_by_sequence = by_sequence | {
        "query": rows.reshape(3, 4, -1), "key": None, "value": None
    }  # fmt: skip
    for form in (one_matrix, packed, uniform, by_sequence, packed_by_sequence):
        result = deltaworks.gated_delta_net(**form)
        assert result.output.ndim == (4 if form["decay"].ndim == 3 else 3)
        same_bits(result.output.reshape(12, 4, 10), expected.output)
        same_bits(result.final_state, expected.final_state)
    with pytest.raises(ValueError, match="value has gaps"):
        deltaworks.gated_delta_net(**by_sequence | {"value": pitched(by_sequence["value"])})


def sequence(case, b, span):
    one = {name: case[name][span] for name in ("query", "key", "value", "decay", "beta")}
    lengths = offsets(span.stop - span.start)
    return one | {"cu_seqlens": lengths, "initial_state": case["initial_state"][b : b + 1]}


def test_packed_equals_alone_whatever_the_threads():
    case = problem()
    packed = deltaworks.gated_delta_net(**case, threads=3)
    for b, span in enumerate(spans(case["cu_seqlens"])):
        alone = deltaworks.gated_delta_net(**sequence(case, b, span))
        same_bits(packed.output[span], alone.output)
        same_bits(packed.final_state[b], alone.final_state[0])


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_verifying_equals_decoding(dtype):
    case = problem(dtype, lengths=(7,))
    verified = deltaworks.gated_delta_net(**case)
    state = case["initial_state"]
    for token in range(7):
        step = sequence(case, 0, slice(token, token + 1)) | {"initial_state": state}
        decoded = deltaworks.gated_delta_net(**step)
        state = decoded.final_state
        same_bits(decoded.output, verified.output[token : token + 1])
    same_bits(state, verified.final_state)


@pytest.mark.parametrize("per_key", [False, True], ids=["per_head", "per_key"])
def test_replay_equals_having_run(per_key):
    case = problem(lengths=(4, 4, 4), per_key=per_key)
    counts = np.array([0, 2, 4], np.int32)
    captured = deltaworks.gated_delta_net(
        **case, state_update_capacity=4, capture_count=np.full(3, 4, np.int32)
    )
    replayed = deltaworks.replay_gated_delta_state(
        case["initial_state"], captured.state_update, counts, key_heads=2, state_update_capacity=4
    )
    for b, count in enumerate(counts):
        run = deltaworks.gated_delta_net(**sequence(case, b, slice(4 * b, 4 * b + count)))
        same_bits(replayed.state[b], run.final_state[0])


@pytest.mark.parametrize("active", [False, np.array([0], np.int32)], ids=["bool", "tensor"])
def test_an_inactive_capture_is_zeros(active):
    case = problem()
    result = deltaworks.gated_delta_net(
        **case,
        state_update_capacity=3,
        capture_count=np.full(4, 3, np.int32),
        state_update_active=active,
        out=(None, None, poison((4, 3 * (4 + 2 * 24 + 4 * 10)))),
    )
    assert not result.state_update.any()


def test_in_place():
    case = problem()
    expected = deltaworks.gated_delta_net(**case)
    state, output = case["initial_state"], poison(expected.output.shape)
    result = deltaworks.gated_delta_net(**case, out=(output, state, None))
    assert result.output is output and result.final_state is state
    same_bits(output, expected.output)
    same_bits(state, expected.final_state)


def test_replay_in_place():
    case = problem(lengths=(3,))
    captured = deltaworks.gated_delta_net(
        **case, state_update_capacity=3, capture_count=np.array([3], np.int32)
    )
    state = case["initial_state"]
    result = deltaworks.replay_gated_delta_state(
        state, captured.state_update, np.array([3], np.int32), key_heads=2,
        state_update_capacity=3, out=(state,),
    )  # fmt: skip
    assert result.state is state
    same_bits(state, captured.final_state)


@pytest.mark.parametrize(
    "argument", ["query", "key", "value", "cu_seqlens", "decay", "beta", "initial_state"]
)
def test_rows_may_lie_apart(argument):
    case = problem()
    expected = deltaworks.gated_delta_net(**case)
    result = deltaworks.gated_delta_net(**case | {argument: pitched(case[argument])})
    same_bits(result.output, expected.output)
    same_bits(result.final_state, expected.final_state)


def test_gates_rows_and_results_may_lie_apart():
    case, rng = problem(lengths=(3, 4), per_key=True), fresh_rng()
    case |= {"a_log": normal(rng, 4), "dt_bias": normal(rng, 4, 24)}
    options = {"gate_activation": "softplus", "state_update_capacity": 2}
    capture = np.array([2, 1], np.int32)
    expected = deltaworks.gated_delta_net(**case, **options, capture_count=capture)
    for name in ("a_log", "dt_bias"):
        case[name] = pitched(case[name])
    out = tuple(pitched(poison(array.shape)) for array in expected)
    result = deltaworks.gated_delta_net(**case, **options, capture_count=pitched(capture), out=out)
    for array, wanted in zip(result, expected, strict=True):
        same_bits(array, wanted)


def test_state_pool():
    case = problem(lengths=(3, 2, 4))
    alone = deltaworks.gated_delta_net(**case)
    pool = poison((5, *case["initial_state"].shape[1:]))
    pool[[4, 0]] = case["initial_state"][:2]
    slots = {
        "slots_in": np.array([4, 0, -1], np.int32),
        "slots_out": np.array([4, 1, -1], np.int32),
    }
    result = deltaworks.gated_delta_net(**case | {"initial_state": pool}, **slots)
    same_bits(result.output[:5], alone.output[:5])
    assert not result.output[5:].any()
    expected = pool.copy()
    expected[[4, 1]] = alone.final_state[:2]
    same_bits(result.final_state, expected)
    del case["initial_state"]  # zeros; memory that is handed in has the slots
    zeros = deltaworks.gated_delta_net(**case)
    result = deltaworks.gated_delta_net(**case, **slots, out=(None, pool, None))
    same_bits(result.output[:5], zeros.output[:5])
    same_bits(pool[[4, 1]], zeros.final_state[:2])
    with pytest.raises(ValueError, match="final_state is missing"):
        deltaworks.gated_delta_net(**case, **slots)
