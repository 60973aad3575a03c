"""One model of both operators between built-in ones, through each entry point, on any ONNX Runtime
from 1.23.2 on: gaps, every type, packed and separate operands, capture, replay, states in place."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from support import (
    HAS_PACKED_SCHEMA,
    HAS_SCHEMAS,
    LIBRARY,
    ONNX_TYPE,
    TOLERANCE,
    TYPES,
    assert_close,
    assert_same_bits,
    claimed,
    offsets,
    poison,
    run_bound,
    serialized,
    session,
    type_name,
)

HEADS, VALUE_HEADS, KEY, VALUE, WIDTH, CAPACITY = 2, 4, 8, 6, 4, 3
CHANNELS = 2 * HEADS * KEY + VALUE_HEADS * VALUE
LENGTHS = (2, 0, 3, 1)
ENTRIES = {
    "operators": {"library": LIBRARY, "provider": False},
    "both": {"library": LIBRARY, "provider": True},
    "provider": {"library": None, "provider": True},
}


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def our_node(op, inputs, outputs, domain="com.microsoft", **attributes):
    return helper.make_node(op, inputs, outputs, name=op, domain=domain, **attributes)


def step_model(dtype, packed):
    """Casts -> convolution without a bias -> gated delta rule without gates' parameters -> Relu."""
    kind, real, whole = ONNX_TYPE[np.dtype(dtype)], TensorProto.FLOAT, TensorProto.INT32
    operands = ["mixed", "", ""] if packed else ["query", "key", "value"]
    nodes = [
        helper.make_node("Cast", ["x"], ["x_cast"], to=kind),
        our_node(
            "VarlenCausalConvWithState",
            ["x_cast", "taps", "cu_seqlens", "", "conv_state", "capture_count"],
            ["mixed", "new_conv_state", "conv_update"],
            activation="silu",
            state_update_capacity=CAPACITY,
        ),
        our_node(
            "GatedDeltaNet",
            [*operands, "cu_seqlens", "decay", "beta", "state", "", "", "capture_count"],
            ["o", "new_state", "update"],
            qk_l2_norm=1,
            state_update_capacity=CAPACITY,
        ),
        helper.make_node("Cast", ["o"], ["o_cast"], to=real),
        helper.make_node("Relu", ["o_cast"], ["y"]),
    ]
    if not packed:
        sizes = {"query": (HEADS, KEY), "key": (HEADS, KEY), "value": (VALUE_HEADS, VALUE)}
        # One row of Gather indices for each: Split takes no bfloat16.
        nodes[2:2] = [
            node
            for name, shape in sizes.items()
            for node in (
                helper.make_node("Gather", ["mixed", f"{name}_at"], [f"{name}_flat"], axis=1),
                helper.make_node("Reshape", [f"{name}_flat", f"{name}_shape"], [name]),
            )
        ]
    at = np.split(np.arange(CHANNELS), [HEADS * KEY, 2 * HEADS * KEY])
    constants = (
        []
        if packed
        else [
            constant
            for (name, shape), indices in zip(sizes.items(), at, strict=True)
            for constant in (
                helper.make_tensor(f"{name}_at", TensorProto.INT64, [len(indices)], indices),
                helper.make_tensor(f"{name}_shape", TensorProto.INT64, [3], [-1, *shape]),
            )
        ]
    )
    inputs = [
        value("x", real, ["n", CHANNELS]),
        value("taps", kind, [CHANNELS, 1, WIDTH]),
        value("cu_seqlens", whole, ["b1"]),
        value("conv_state", kind, ["b", CHANNELS, WIDTH - 1]),
        value("capture_count", whole, ["b"]),
        value("decay", real, ["n", VALUE_HEADS]),
        value("beta", real, ["n", VALUE_HEADS]),
        value("state", real, ["b", VALUE_HEADS, VALUE, KEY]),
    ]
    outputs = [
        value("y", real, ["n", VALUE_HEADS, VALUE]),
        value("new_conv_state", kind, ["b", CHANNELS, WIDTH - 1]),
        value("conv_update", kind, ["b", CAPACITY, CHANNELS]),
        value("new_state", real, ["b", VALUE_HEADS, VALUE, KEY]),
        value("update", real, ["b", None]),
    ]
    return serialized(helper.make_graph(nodes, "step", inputs, outputs, constants))


def replay_model(dtype):
    kind, real, whole = ONNX_TYPE[np.dtype(dtype)], TensorProto.FLOAT, TensorProto.INT32
    conv, delta = ["b", CHANNELS, WIDTH - 1], ["b", VALUE_HEADS, VALUE, KEY]
    nodes = [
        our_node(
            "ConvStateReplay",
            ["conv_state", "conv_update", "count"],
            ["new_conv_state"],
            "deltaworks",
        ),
        our_node(
            "GatedDeltaStateReplay",
            ["state", "update", "count"],
            ["new_state"],
            "deltaworks",
            key_heads=HEADS,
            state_update_capacity=CAPACITY,
        ),
    ]
    inputs = [
        value("conv_state", kind, conv),
        value("conv_update", kind, ["b", CAPACITY, CHANNELS]),
        value("state", real, delta),
        value("update", real, ["b", None]),
        value("count", whole, ["b"]),
    ]
    outputs = [value("new_conv_state", kind, conv), value("new_state", real, delta)]
    return serialized(helper.make_graph(nodes, "replay", inputs, outputs))


def feeds(dtype, lengths=LENGTHS):
    rng = np.random.default_rng()

    def normal(*shape, scale=1.0):
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    n, b = sum(lengths), len(lengths)
    return {
        "x": normal(n, CHANNELS),
        "taps": normal(CHANNELS, 1, WIDTH, scale=0.5).astype(dtype),
        "cu_seqlens": offsets(lengths),
        "conv_state": normal(b, CHANNELS, WIDTH - 1).astype(dtype),
        "capture_count": np.full(b, CAPACITY, np.int32),
        "decay": -np.abs(normal(n, VALUE_HEADS)),
        "beta": rng.uniform(0.1, 0.9, (n, VALUE_HEADS)).astype(np.float32),
        "state": normal(b, VALUE_HEADS, VALUE, KEY, scale=0.3),
    }


def results(dtype, lengths=LENGTHS):
    """Memory for every output, poisoned."""
    n, b = sum(lengths), len(lengths)
    row = CAPACITY * (VALUE_HEADS + HEADS * KEY + VALUE_HEADS * VALUE)
    return {
        "y": poison(np.float32, (n, VALUE_HEADS, VALUE)),
        "new_conv_state": poison(dtype, (b, CHANNELS, WIDTH - 1)),
        "conv_update": poison(dtype, (b, CAPACITY, CHANNELS)),
        "new_state": poison(np.float32, (b, VALUE_HEADS, VALUE, KEY)),
        "update": poison(np.float32, (b, row)),
    }


def convolved(dtype, x, taps, state):
    """One sequence, float64 sums, rounded once: [tokens, channels]."""
    seen = np.concatenate([state.T, x.astype(dtype)]).astype(np.float64)
    weight = taps[:, 0].astype(np.float64)
    total = sum(weight[:, j] * seen[j : j + len(x)] for j in range(WIDTH))
    return (total / (1 + np.exp(-total))).astype(dtype).astype(np.float64)


def recurred(mixed, decay, beta, state):
    """One sequence of the gated delta rule in float64: outputs and the state after it."""
    query, key, values = np.split(mixed, [HEADS * KEY, 2 * HEADS * KEY], axis=1)
    outputs, state = np.zeros((len(mixed), VALUE_HEADS, VALUE)), state.astype(np.float64)
    for t, head in np.ndindex(len(mixed), VALUE_HEADS):
        at = head // (VALUE_HEADS // HEADS)
        q, k = (rows[t].reshape(HEADS, KEY)[at] for rows in (query, key))
        q, k = (vector / np.sqrt((vector**2).sum() + 1e-12) for vector in (q, k))
        faded = np.exp(np.float64(decay[t, head])) * state[head]
        error = values[t].reshape(VALUE_HEADS, VALUE)[head] - faded @ k
        state[head] = faded + np.outer(beta[t, head] * error, k)
        outputs[t, head] = state[head] @ q / np.sqrt(KEY)
    return outputs, state


def expected(dtype, fed, lengths=LENGTHS):
    y, states = [np.zeros((0, VALUE_HEADS, VALUE))], []
    for b, start in enumerate(fed["cu_seqlens"][:-1]):
        rows = slice(start, start + lengths[b])
        mixed = convolved(dtype, fed["x"][rows], fed["taps"], fed["conv_state"][b])
        outputs, state = recurred(mixed, fed["decay"][rows], fed["beta"][rows], fed["state"][b])
        y.append(np.maximum(outputs, 0))
        states.append(state)
    return np.concatenate(y), np.stack(states)


def open_session(model, entry, packed):
    if entry == "provider" and not (HAS_PACKED_SCHEMA if packed else HAS_SCHEMAS):
        what = "packed GatedDeltaNet" if HAS_SCHEMAS else "GatedDeltaNet"
        pytest.skip(f"ONNX Runtime {ort.__version__} knows no {what}: register the operators too")
    return session(model, **ENTRIES[entry])


def test_all_entries_are_served_here():
    """The newest ONNX Runtime of the matrix may skip nothing."""
    if HAS_PACKED_SCHEMA:
        for packed in (True, False):
            running = open_session(step_model(np.float32, packed), "provider", packed)
            assert claimed(running) == ["GatedDeltaNet", "VarlenCausalConvWithState"]


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "separate"])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
@pytest.mark.parametrize("entry", ENTRIES)
def test_step(entry, dtype, packed):
    running, fed, got = open_session(step_model(dtype, packed), entry, packed), feeds(dtype), None
    got = run_bound(running, fed, results(dtype))
    y, states = expected(dtype, fed)
    assert_close(got["y"], y, TOLERANCE[np.dtype(dtype)], "y")
    assert_close(got["new_state"], states, TOLERANCE[np.dtype(dtype)], "new_state")
    in_place = results(dtype)
    for old, new in (("conv_state", "new_conv_state"), ("state", "new_state")):
        in_place[new] = fed[old].copy()
    bound = fed | {"conv_state": in_place["new_conv_state"], "state": in_place["new_state"]}
    run_bound(running, bound, in_place)
    for name in got:
        assert_same_bits(in_place[name], got[name], f"{name}, states in place")


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_entries_agree_to_the_bit(dtype):
    fed, model = feeds(dtype), step_model(dtype, False)
    served = [entry for entry in ENTRIES if HAS_SCHEMAS or ENTRIES[entry]["library"]]
    first, *others = (run_bound(open_session(model, e, False), fed, results(dtype)) for e in served)
    for other in others:
        for name in first:
            assert_same_bits(other[name], first[name], name)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
@pytest.mark.parametrize("entry", ["operators", "both"])
def test_replay_equals_having_run(entry, dtype):
    """Of each sequence, the first half of its tokens is kept."""
    fed = feeds(dtype)
    running = session(step_model(dtype, True), **ENTRIES[entry])
    captured = run_bound(running, fed, results(dtype))
    kept = tuple((length + 1) // 2 for length in LENGTHS)
    rows = [slice(s, s + k) for s, k in zip(fed["cu_seqlens"], kept, strict=False)]
    short = fed | {"cu_seqlens": offsets(kept)}
    for name in ("x", "decay", "beta"):
        short[name] = np.concatenate([fed[name][row] for row in rows])
    ran = run_bound(running, short, results(dtype, kept))
    replayed = {
        name: poison(ran[name].dtype, ran[name].shape) for name in ("new_conv_state", "new_state")
    }
    inputs = {name: fed[name] for name in ("conv_state", "state")}
    inputs |= {name: captured[name] for name in ("conv_update", "update")}
    inputs["count"] = np.array(kept, np.int32)
    run_bound(session(replay_model(dtype), **ENTRIES[entry]), inputs, replayed)
    for name, array in replayed.items():
        assert_same_bits(array, ran[name], name)
