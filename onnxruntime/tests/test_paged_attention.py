"""PagedAttention, which ONNX Runtime's CPU lacks, beside a float64 reference."""

import pytest
from paged_attention_nodes import Problem, reference
from support import (
    TYPES,
    assert_close,
    assert_same_bits,
    run,
    run_bound,
    session,
    type_name,
)

TOLERANCE = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}


def compare(problem):
    ours, expected = run(problem.node()), reference(problem)
    for name, array in expected.items():
        assert_close(ours[name], array, TOLERANCE[type_name(problem.dtype)], name)


CASES = {
    "plain": {},
    "packed": {"packed": True},
    "norm": {"norm": True},
    "rotary": {"rotary_dim": 16},
    "partial rotary": {"rotary_dim": 8, "attributes": {"rotary_offset": 4}},
    "interleaved": {"rotary_dim": 16, "attributes": {"rotary_interleaved": 1}},
    "window": {"attributes": {"local_window_size": 3}},
    "softcap": {"attributes": {"softcap": 2.0}},
    "scale": {"attributes": {"scale": 0.3}},
    "sink": {"sink": True},
    "both ways": {"attributes": {"is_causal": 0}},
    "everything": {
        "packed": True,
        "norm": True,
        "rotary_dim": 16,
        "sink": True,
        "attributes": {"softcap": 5.0, "local_window_size": 6, "qk_norm_epsilon": 1e-5},
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_matches_float64(dtype, case):
    compare(Problem(dtype=dtype, **CASES[case]))


@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 1, "kv_heads": 1, "head_dim": 2},
        {"heads": 6, "kv_heads": 1, "head_dim": 10},
        {"heads": 2, "kv_heads": 2, "head_dim": 128},
        {"block_size": 1, "blocks": 64, "max_blocks": 12},
    ],
    ids=str,
)
def test_sizes(sizes):
    compare(Problem(**sizes))


@pytest.mark.parametrize(
    "sizes",
    [
        {"lengths": (0, 3, 0), "past": (5, 0, 0)},
        {"lengths": (0, 0), "past": (5, 0)},
        {"lengths": (), "past": ()},
    ],
    ids=str,
)
def test_empty_sequences(sizes):
    compare(Problem(**sizes))


def test_slot_mapping():
    # The rows of block 0 that no page maps, and -1: not written.
    plain = Problem()
    table = plain.operands()["block_table"]
    token_slots = []
    for b, (past, length) in enumerate(zip(plain.past, plain.lengths, strict=True)):
        for position in range(past, past + length):
            token_slots.append(table[b, position // 4] * 4 + position % 4)
    mapped = run(Problem(slot_mapping=tuple(token_slots)).node())
    for name, array in run(plain.node()).items():
        assert_same_bits(mapped[name], array, name)
    compare(Problem(slot_mapping=(-1, *token_slots[1:])))


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_caches_in_place(dtype):
    problem = Problem(dtype=dtype, norm=True, rotary_dim=16)
    node = problem.node()
    expected = run(node)
    caches = {name: node.feeds()[name].copy() for name in ("key_cache", "value_cache")}
    outputs = node.poisoned() | {f"{name}_out": array for name, array in caches.items()}
    run_bound(session(node.model()), node.feeds() | caches, outputs)
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


def test_without_cache_outputs_the_caches_are_updated():
    problem = Problem()
    expected = run(problem.node())
    node = problem.node(cache_outputs=False)
    feeds = {name: array.copy() for name, array in node.feeds().items()}
    outputs = run_bound(session(node.model()), feeds, node.poisoned())
    assert_same_bits(outputs["output"], expected["output"])
    for name in ("key_cache", "value_cache"):
        assert_same_bits(feeds[name], expected[f"{name}_out"], name)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_one_call_equals_one_token_a_call(dtype):
    together = Problem(lengths=(5,), past=(6,), dtype=dtype)
    operands, expected = together.operands(), run(together.node())
    caches = {name: operands[name] for name in ("key_cache", "value_cache")}
    for t in range(5):
        alone = Problem(lengths=(1,), past=(6 + t,), dtype=dtype)
        row = {name: operands[name][t : t + 1] for name in ("query", "key", "value")}
        outputs = run(alone.node(**row, **caches, block_table=operands["block_table"]))
        caches = {name: outputs[f"{name}_out"] for name in caches}
        assert_same_bits(outputs["output"][0], expected["output"][t], f"token {t}")


def test_threads_change_no_bit():
    node = Problem(lengths=(40, 1, 17), past=(0, 90, 30), blocks=80, max_blocks=24).node()
    one, two = run(node, threads=1), run(node, threads=2)
    for name in one:
        assert_same_bits(two[name], one[name], name)


@pytest.mark.parametrize("mark", ["", "?"], ids=["unknown dims", "unknown ranks"])
def test_shapes_may_be_unknown_at_creation(mark):
    node = Problem(packed=True, norm=True, rotary_dim=16).node()
    expected = run(node)
    outputs = run(node, symbolic=[mark + name for name in node.feeds()])
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


def test_a_refused_call_copies_no_cache():
    problem = Problem()
    node = problem.node()
    feeds = {name: array.copy() for name, array in node.feeds().items()}
    feeds["block_table"][1, 0] = -1
    outputs = node.poisoned()
    before = {name: array.copy() for name, array in outputs.items()}
    with pytest.raises(Exception, match=r"block_table\[1, 0\] is -1"):
        run_bound(session(node.model()), feeds, outputs)
    for name, array in before.items():
        assert_same_bits(outputs[name], array, name)


def test_a_cache_output_in_the_other_cache_is_refused():
    node = Problem().node()
    feeds = {name: array.copy() for name, array in node.feeds().items()}
    outputs = node.poisoned() | {"key_cache_out": feeds["value_cache"]}
    before = feeds["value_cache"].copy()
    with pytest.raises(Exception, match="PagedAttention: key_cache_out overlaps value_cache"):
        run_bound(session(node.model()), feeds, outputs)
    assert_same_bits(feeds["value_cache"], before, "value_cache")
