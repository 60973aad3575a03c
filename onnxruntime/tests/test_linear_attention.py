"""LinearAttention beside ONNX Runtime's own kernel, and its laws to the bit."""

from dataclasses import dataclass

import numpy as np
import pytest
from onnx import TensorProto, helper
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
    serialized,
    session,
    type_name,
)

RULES = ["linear", "gated", "delta", "gated_delta"]


@dataclass
class Problem:
    sequences: int = 2
    length: int = 5
    q_num_heads: int = 2
    kv_num_heads: int = 4
    key_heads: int = 2
    key_dim: int = 16
    value_dim: int = 24
    dtype: type = np.float32
    state_dtype: type | None = None
    rule: str | None = "gated_delta"
    per_key: bool = False
    one_beta: bool = False
    past: bool = True
    scale: float | None = None

    def operands(self):
        rng = np.random.default_rng(0)
        b, n, kv = self.sequences, self.length, self.kv_num_heads

        def normal(*shape, scale=1.0, mean=0.0, dtype=self.dtype):
            return (rng.standard_normal(shape) * scale + mean).astype(np.float32).astype(dtype)

        unit = self.key_dim**-0.5
        state = (b, kv, self.key_dim, self.value_dim)
        return {
            "query": normal(b, n, self.q_num_heads * self.key_dim, scale=unit),
            "key": normal(b, n, self.key_heads * self.key_dim, scale=unit),
            "value": normal(b, n, kv * self.value_dim),
            "past_state": normal(*state, scale=0.2, dtype=self.state_dtype or self.dtype),
            "decay": normal(
                b, n, kv * (self.key_dim if self.per_key else 1), scale=0.05, mean=-0.2
            ),
            "beta": normal(b, n, 1 if self.one_beta else kv, scale=0.1, mean=0.5),
        }

    def node(self, *, gates=None, **changed):
        """`gates` names the gates to give instead of those that the rule needs."""
        operands = self.operands() | changed
        if gates is None:
            rule = self.rule or "gated_delta"
            gates = ["decay"] * ("gated" in rule) + ["beta"] * ("delta" in rule)
        inputs = [item for item in operands.items()]
        for index, name in ((4, "decay"), (5, "beta")):
            if name not in gates:
                inputs[index] = None
        if not self.past:
            inputs[3] = None
        while inputs[-1] is None:
            inputs.pop()
        b, n, heads = self.sequences, self.length, max(self.q_num_heads, self.kv_num_heads)
        outputs = [
            ("output", self.dtype, (b, n, heads * self.value_dim)),
            ("present_state", self.state_dtype or self.dtype, operands["past_state"].shape),
        ]
        attributes = {"q_num_heads": self.q_num_heads, "kv_num_heads": self.kv_num_heads}
        if self.rule:
            attributes["update_rule"] = self.rule
        if self.scale is not None:
            attributes["scale"] = self.scale
        return Node("LinearAttention", inputs, outputs, attributes)


def compare(problem, **options):
    """With ONNX Runtime's kernel, which has float32, and float16 through casts."""
    node = problem.node(**options)
    ours, stock = run(node), run_stock(node)
    for name in ours:
        tolerance = TOLERANCE[ours[name].dtype]
        assert_close(ours[name], stock[name], tolerance, name)


@pytest.mark.parametrize("past", [True, False], ids=["past", "fresh"])
@pytest.mark.parametrize("rule", RULES + [None])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=type_name)
def test_matches_onnxruntime(dtype, rule, past):
    compare(Problem(dtype=dtype, rule=rule, past=past))


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=type_name)
def test_per_key_decay_one_beta_and_scale(dtype):
    compare(Problem(dtype=dtype, per_key=True, one_beta=True, scale=0.7))


@pytest.mark.parametrize(
    "heads", [(1, 1, 1), (4, 4, 2), (8, 2, 1), (6, 3, 3), (1, 4, 4), (2, 6, 3)]
)
def test_head_maps(heads):
    q_num_heads, kv_num_heads, key_heads = heads
    compare(Problem(q_num_heads=q_num_heads, kv_num_heads=kv_num_heads, key_heads=key_heads))


@pytest.mark.parametrize("dims", [(128, 128), (64, 64), (3, 5), (256, 33), (600, 17)])
@pytest.mark.parametrize("length", [1, 3, 70])
def test_dims_and_lengths(dims, length):
    compare(Problem(key_dim=dims[0], value_dim=dims[1], length=length))


@pytest.mark.parametrize("rule", RULES)
def test_gates_that_the_rule_does_not_need_are_tolerated(rule):
    problem = Problem(rule=rule)
    compare(problem, gates=["decay", "beta"])
    needed, everything = run(problem.node()), run(problem.node(gates=["decay", "beta"]))
    for name in needed:
        assert_same_bits(everything[name], needed[name], name)


def test_float16_with_a_float32_state():
    compare(Problem(dtype=np.float16, state_dtype=np.float32))


@pytest.mark.parametrize(
    "state_dtype, past",
    # Without past_state a 16-bit node has a 16-bit state.
    [(BFLOAT16, True), (BFLOAT16, False), (np.float32, True)],
    ids=["state bfloat16", "no past_state", "state float32"],
)
def test_bfloat16_is_float32_rounded(state_dtype, past):
    """ONNX Runtime has no bfloat16 kernel on the CPU: compare with its float32 one."""
    problem = Problem(dtype=BFLOAT16, state_dtype=state_dtype, past=past)
    operands = {name: x.astype(np.float32) for name, x in problem.operands().items()}
    expected = run_stock(Problem(past=past).node(**operands))
    ours = run(problem.node())
    for name in ours:
        assert_close(ours[name], expected[name], TOLERANCE[ours[name].dtype], name)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_splits_change_no_bit_of_a_float32_state(dtype):
    """(A 16-bit state is rounded where a split cuts.)"""
    fixed = {"dtype": dtype, "state_dtype": np.float32, "key_dim": 64, "value_dim": 64}
    problem = Problem(length=9, **fixed)
    whole, operands = run(problem.node()), problem.operands()
    state = operands["past_state"]
    for first, last in ((0, 1), (1, 2), (2, 7), (7, 9)):
        part = {
            name: x if name == "past_state" else np.ascontiguousarray(x[:, first:last])
            for name, x in operands.items()
        }
        outputs = run(Problem(length=last - first, **fixed).node(**part | {"past_state": state}))
        assert_same_bits(outputs["output"], np.ascontiguousarray(whole["output"][:, first:last]))
        state = outputs["present_state"]
    assert_same_bits(state, whole["present_state"])


@pytest.mark.parametrize("sequences, length", [(2, 0), (0, 3), (0, 0)])
def test_empty_calls_hand_the_state_on(sequences, length):
    problem = Problem(sequences=sequences, length=length)
    assert_same_bits(run(problem.node())["present_state"], problem.operands()["past_state"])
    fresh = run(Problem(sequences=sequences, length=length, past=False).node())
    assert not fresh["present_state"].any()


def test_threads_change_no_bit():
    node = Problem(sequences=3, length=40).node()
    one, two = run(node, threads=1), run(node, threads=2)
    for name in one:
        assert_same_bits(two[name], one[name], name)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_state_in_place(dtype):
    problem = Problem(dtype=dtype, length=70)
    node = problem.node()
    expected = run(node)
    state = problem.operands()["past_state"].copy()
    outputs = node.poisoned() | {"present_state": state}
    run_bound(session(node.model()), node.feeds() | {"past_state": state}, outputs)
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


@pytest.mark.parametrize("mark", ["", "?"], ids=["unknown dims", "unknown ranks"])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_shapes_may_be_unknown_at_creation(dtype, mark):
    node = Problem(dtype=dtype).node()
    expected = run(node)
    outputs = run(node, symbolic=[mark + name for name in node.feeds()])
    for name in expected:
        assert_same_bits(outputs[name], expected[name], name)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_between_casts(kind):
    """A 16-bit node between casts, as float16 models on the CPU have it: ONNX Runtime inserts casts
    around what it thinks has no 16-bit kernel, and the result must still be this operator's."""
    problem = Problem(dtype=np.float16 if kind == "float16" else BFLOAT16)
    operands, node = problem.operands(), problem.node()
    narrow = TensorProto.FLOAT16 if kind == "float16" else TensorProto.BFLOAT16

    def value(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes = [
        helper.make_node("Cast", [name], [name + "_narrow"], to=narrow) for name in node.feeds()
    ]
    nodes.append(
        helper.make_node(
            "LinearAttention",
            [name + "_narrow" for name in node.feeds()],
            ["output_narrow", "present_state_narrow"],
            domain="com.microsoft",
            **node.attributes,
        )
    )
    nodes += [
        helper.make_node("Cast", [name + "_narrow"], [name], to=TensorProto.FLOAT)
        for name in ("output", "present_state")
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [value(name, operands[name].shape) for name in node.feeds()],
        [value(name, shape) for name, _, shape in node.outputs],
    )
    feeds = {name: operands[name].astype(np.float32) for name in node.feeds()}
    results = session(serialized(graph)).run(None, feeds)
    for (name, dtype, _), actual in zip(node.outputs, results, strict=True):
        expected = run(node)[name].astype(np.float32)
        assert_close(actual, expected, TOLERANCE[np.dtype(dtype)], name)


def refused(problem, fragment, attributes=None, **changed):
    node = problem.node(**changed)
    node.attributes |= attributes or {}
    with pytest.raises(Exception, match="LinearAttention: ") as caught:
        session(node.model())
    assert fragment in str(caught.value)
    # The same when the shapes are known at the run only; an attribute is refused at once.
    outputs = node.poisoned()
    with pytest.raises(Exception, match="LinearAttention: ") as caught:
        run_bound(session(node.model(symbolic=node.feeds())), node.feeds(), outputs)
    assert fragment in str(caught.value)
    for name, untouched in node.poisoned().items():
        assert_same_bits(outputs[name], untouched, name)


@pytest.mark.parametrize(
    "attributes, fragment",
    [
        ({"state_window": 2}, "state_window is 2, expected 0"),
        ({"update_rule": "gated_deltas"}, 'update_rule is "gated_deltas", expected one of'),
        ({"q_num_heads": 3}, "q_num_heads is 3, expected a multiple or a divisor"),
        ({"kv_num_heads": 0}, "kv_num_heads is 0, expected 1 or more"),
        ({"scale": float("nan")}, "scale is NaN"),
        ({"scale": 1}, "attribute scale is an integer, expected a float"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_wrong_attributes(attributes, fragment):
    refused(Problem(), fragment, attributes)


def test_wrong_calls():
    operands = Problem().operands()
    refused(Problem(), "decay is missing, expected it", gates=["beta"])
    refused(Problem(rule="delta"), "beta is missing, expected it", gates=["decay"])
    refused(Problem(), "key has 3 heads of 16", key=np.zeros((2, 5, 48), np.float32))
    refused(Problem(), "beta has rows of 3", beta=np.zeros((2, 5, 3), np.float32))
    refused(Problem(), "decay has rows of 7", decay=np.zeros((2, 5, 7), np.float32))
    refused(Problem(), "value has shape [2, 4, 96]", value=operands["value"][:, :4].copy())
    node = Problem().node()
    del node.attributes["q_num_heads"]
    with pytest.raises(Exception, match="attribute q_num_heads is missing, expected an integer"):
        session(node.model())
