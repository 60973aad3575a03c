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

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 16, 4


def reference(case, b, span, past):
    """One sequence in float64, over the cache as the call leaves it."""
    rows = case["block_table"][b][:, None] * BLOCK + np.arange(BLOCK)
    rows = rows.reshape(-1)[: past + span.stop - span.start]
    keys, values = (
        case[name].reshape(-1, KV_HEADS, DIM)[rows].astype(np.float64)
        for name in ("key_cache", "value_cache")
    )
    output = np.zeros((span.stop - span.start, HEADS, DIM))
    for token, query in enumerate(case["query"][span].astype(np.float64)):
        seen = past + token + 1
        for head in range(HEADS):
            kv = head // (HEADS // KV_HEADS)
            weights = np.exp(keys[:seen, kv] @ query[head] / np.sqrt(DIM))
            output[token, head] = weights @ values[:seen, kv] / weights.sum()
    return output


def problem(dtype=np.float32, lengths=(1, 6), past=(9, 0)):
    rng, tokens = fresh_rng(), sum(lengths)
    return {
        "query": normal(rng, tokens, HEADS, DIM, dtype=dtype),
        "key": normal(rng, tokens, KV_HEADS, DIM, dtype=dtype),
        "value": normal(rng, tokens, KV_HEADS, DIM, dtype=dtype),
        "key_cache": normal(rng, 7, BLOCK, KV_HEADS, DIM, dtype=dtype),
        "value_cache": normal(rng, 7, BLOCK, KV_HEADS, DIM, dtype=dtype),
        "cu_seqlens": offsets(*lengths),
        "past_seqlens": np.array(past, np.int32),
        "block_table": np.array([[6, 0, 3], [1, 5, -1]], np.int32),
    }


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_agrees_with_the_reference(dtype):
    case = problem(dtype)
    before = case["key_cache"].copy()
    result = deltaworks.paged_attention(**case, threads=2)
    assert result.key_cache is case["key_cache"] and result.value_cache is case["value_cache"]
    for b, span in enumerate(spans(case["cu_seqlens"])):
        close(result.output[span], reference(case, b, span, case["past_seqlens"][b]))
    same_bits(case["key_cache"][3, 1], case["key"][0])
    same_bits(case["key_cache"][[2, 4]], before[[2, 4]])


def test_verifying_equals_decoding():
    case = problem()
    single = {name: array.copy() for name, array in case.items()}
    expected = deltaworks.paged_attention(**case).output
    for token in range(1, 7):
        rows = slice(token, token + 1)
        step = single | {name: single[name][rows] for name in ("query", "key", "value")}
        step |= {"cu_seqlens": offsets(0, 1), "past_seqlens": np.array([0, token - 1], np.int32)}
        same_bits(deltaworks.paged_attention(**step).output, expected[rows])


def test_operands_may_be_slices_of_one_matrix():
    case = problem()
    expected = deltaworks.paged_attention(**{k: v.copy() for k, v in case.items()}).output
    rows = np.concatenate([case["query"], case["key"], case["value"]], axis=1)
    case |= {"query": rows[:, :4], "key": rows[:, 4:6], "value": rows[:, 6:]}
    result = deltaworks.paged_attention(**case, out=pitched(poison(expected.shape)))
    same_bits(result.output, expected)


@pytest.mark.parametrize("argument", ["key_cache", "value_cache", "block_table", "past_seqlens"])
def test_rows_may_lie_apart(argument):
    case = problem()
    expected = deltaworks.paged_attention(**{k: v.copy() for k, v in case.items()})
    result = deltaworks.paged_attention(**case | {argument: pitched(case[argument])})
    for array, wanted in zip(result, expected, strict=True):
        same_bits(array, wanted)


def test_options_reach_the_library():
    case, rng = problem(), fresh_rng()
    plain = deltaworks.paged_attention(**case).output
    options = {
        "scale": 0.5,
        "softcap": 2.0,
        "local_window_size": 2,
        "is_causal": False,
        "head_sink": normal(rng, HEADS),
        "slot_mapping": np.full(7, -1, np.int32),
    }
    for name, value in options.items():
        if name == "slot_mapping":
            case["key_cache"][:] = 0
        assert not np.array_equal(deltaworks.paged_attention(**case, **{name: value})[0], plain)
    norms = {"q_norm_weight": normal(rng, DIM), "k_norm_weight": normal(rng, DIM)}
    tables = {"cos_cache": normal(rng, 12, 4), "sin_cache": normal(rng, 12, 4)}
    seen = [plain]
    for more in (
        norms,
        norms | {"qk_norm_epsilon": 0.5},
        tables,
        tables | {"rotary_interleaved": True},
        tables | {"rotary_offset": 3},
    ):
        output = deltaworks.paged_attention(**case, **more).output
        assert all(not np.array_equal(output, other) for other in seen)
        seen.append(output)


def test_a_missing_block_names_its_sequence():
    case = problem(lengths=(1, 9))
    with pytest.raises(ValueError, match=r"paged_attention: .*block_table\[1, 2\] is -1"):
        deltaworks.paged_attention(**case)
    with pytest.raises(ValueError, match="query has type int32"):
        deltaworks.paged_attention(**case | {"query": np.zeros((10, 4, 16), np.int32)})
