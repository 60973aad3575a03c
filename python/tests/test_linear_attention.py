import deltaworks
import numpy as np
import pytest
from support import TYPES, close, fresh_rng, normal, same_bits, type_name

SIZES = {
    "sequences": 2,
    "length": 6,
    "q": 2,
    "kv": 4,
    "key_heads": 2,
    "key_dim": 12,
    "value_dim": 9,
}


def problem(dtype=np.float32, state=None, **changed):
    """Operands, and the head counts; `state` is the type of past_state, or False for none."""
    rng, s = fresh_rng(), SIZES | changed
    tokens = (s["sequences"], s["length"])
    unit = s["key_dim"] ** -0.5
    case = {
        "query": normal(rng, *tokens, s["q"] * s["key_dim"], dtype=dtype),
        "key": normal(rng, *tokens, s["key_heads"] * s["key_dim"], dtype=dtype, scale=unit),
        "value": normal(rng, *tokens, s["kv"] * s["value_dim"], dtype=dtype),
        "decay": -np.abs(normal(rng, *tokens, s["kv"], scale=0.3)).astype(dtype),
        "beta": rng.uniform(0, 1, (*tokens, s["kv"])).astype(dtype),
    }
    if state is not False:
        extents = (s["sequences"], s["kv"], s["key_dim"], s["value_dim"])
        case["past_state"] = normal(rng, *extents, dtype=state or dtype, scale=0.3)
    return case, {"q_num_heads": s["q"], "kv_num_heads": s["kv"]}


def reference(case, q_num_heads, kv_num_heads):
    wide = {name: array.astype(np.float64) for name, array in case.items()}

    def heads(name, count):
        return wide[name].reshape(*wide[name].shape[:2], count, -1)

    query, value = heads("query", q_num_heads), heads("value", kv_num_heads)
    key_dim = query.shape[-1]
    key = heads("key", wide["key"].shape[-1] // key_dim)
    sequences, length = query.shape[:2]
    states = np.zeros((sequences, kv_num_heads, key_dim, value.shape[-1]))
    states += wide.get("past_state", 0)
    outputs = max(q_num_heads, kv_num_heads)
    output = np.zeros((sequences, length, outputs, value.shape[-1]))
    for b in range(sequences):
        for t in range(length):
            for h in range(kv_num_heads):
                k = key[b, t, h // (kv_num_heads // key.shape[2])]
                state = states[b, h]
                state *= np.exp(wide["decay"][b, t, h])
                delta = wide["beta"][b, t, h] * (value[b, t, h] - state.T @ k)
                state += np.outer(k, delta)
            for o in range(outputs):
                q = query[b, t, o // (outputs // q_num_heads)]
                output[b, t, o] = states[b, o // (outputs // kv_num_heads)].T @ q / key_dim**0.5
    return output.reshape(sequences, length, -1), states


@pytest.mark.parametrize("state", ["same", "float32", "none"])
@pytest.mark.parametrize("heads", [(2, 4, 2), (6, 3, 1), (2, 2, 2)])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_agrees_with_the_reference(dtype, heads, state):
    kinds = {"same": dtype, "float32": np.float32, "none": False}
    q, kv, key_heads = heads
    case, counts = problem(dtype, kinds[state], q=q, kv=kv, key_heads=key_heads)
    result = deltaworks.linear_attention(**case, **counts, threads=2)
    assert result.present_state.dtype == (np.float32 if state == "float32" else dtype)
    output, states = reference(case, **counts)
    close(result.output, output)
    close(result.present_state, states)


def test_a_split_changes_no_bit():
    case, counts = problem()
    whole = deltaworks.linear_attention(**case, **counts)
    state = case.pop("past_state")
    for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
        cut = {name: np.ascontiguousarray(array[:, part]) for name, array in case.items()}
        output, state = deltaworks.linear_attention(**cut, past_state=state, **counts)
        same_bits(output, np.ascontiguousarray(whole.output[:, part]))
    same_bits(state, whole.present_state)


def test_a_token_is_that_of_gated_delta_net_with_the_state_transposed():
    case, counts = problem(sequences=1)
    state = case.pop("past_state")
    token = {name: np.ascontiguousarray(array[:, :1]) for name, array in case.items()}
    ours = deltaworks.linear_attention(**token, past_state=state, **counts)
    theirs = deltaworks.gated_delta_net(
        token["query"].reshape(1, 2, 12),
        token["key"].reshape(1, 2, 12),
        token["value"].reshape(1, 4, 9),
        np.array([0, 1], np.int32),
        decay=token["decay"][0],
        beta=token["beta"][0],
        initial_state=np.ascontiguousarray(state.swapaxes(2, 3)),
    )
    same_bits(ours.output.reshape(1, 4, 9), theirs.output)
    np.testing.assert_allclose(  # gated_delta_net rounds a product more
        ours.present_state.swapaxes(2, 3), theirs.final_state, rtol=0, atol=4e-6
    )


def test_results_in_memory_that_is_handed_in():
    case, counts = problem(np.float16, np.float32)
    expected = deltaworks.linear_attention(**case, **counts)
    state = case["past_state"]
    result = deltaworks.linear_attention(**case, **counts, out=(None, state))
    assert result.present_state is state
    same_bits(state, expected.present_state)
    fresh, counts = problem(np.float16, False)
    wide = np.empty((2, 4, 12, 9), np.float32)
    assert deltaworks.linear_attention(**fresh, **counts, out=(None, wide))[1] is wide


def test_errors_name_the_argument():
    case, counts = problem()
    with pytest.raises(ValueError, match="^linear_attention: beta is missing, expected it"):
        deltaworks.linear_attention(**case | {"beta": None}, **counts)
    with pytest.raises(ValueError, match="^linear_attention: q_num_heads is 3, expected"):
        deltaworks.linear_attention(**case, **counts | {"q_num_heads": 3})
    with pytest.raises(ValueError, match='^linear_attention: update_rule is "none", expected'):
        deltaworks.linear_attention(**case, **counts, update_rule="none")
