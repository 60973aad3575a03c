"""The replay operators: deltaworks' on batches, ONNX Runtime 1.32's on backing buffers."""

import numpy as np
import pytest
from support import TYPES, Node, assert_same_bits, poison, run, run_bound, session, type_name


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def shifted(state, update, count):
    """[C, L] after the first `count` rows of [cap, C]."""
    joined = np.concatenate([state, update[:count].T], axis=1)
    return joined[:, joined.shape[1] - state.shape[1] :]


def stepped(state, decay, key, delta, count):
    """[Hv, V, K] after `count` slots; value head h reads key head h · Hk / Hv."""
    state = state.copy()
    for slot in range(count):
        for head in range(len(state)):
            source = key[slot, head * key.shape[1] // len(state)]
            product = delta[slot, head][:, None] * source[None, :]
            state[head] = state[head] * decay[slot, head] + product
    return state


@pytest.mark.parametrize("history", [0, 1, 3, 9])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_conv_batch(dtype, history):
    state, update = normal(5, 6, history).astype(dtype), normal(5, 4, 6, seed=1).astype(dtype)
    count = np.arange(5, dtype=np.int32)
    node = Node(
        "ConvStateReplay",
        [("state", state), ("state_update", update), ("count", count)],
        [("new_state", dtype, state.shape)],
        domain="deltaworks",
    )
    expected = np.stack([shifted(*row) for row in zip(state, update, count, strict=True)])
    assert_same_bits(run(node)["new_state"], expected)


@pytest.mark.parametrize("per_key", [False, True])
def test_gated_delta_batch(per_key):
    b, hv, hk, v, k, capacity = 4, 6, 2, 5, 7, 3
    state = normal(b, hv, v, k)
    decay = np.abs(normal(b, capacity, hv, *([k] if per_key else []), seed=1))
    key, delta = normal(b, capacity, hk, k, seed=2), normal(b, capacity, hv, v, seed=3)
    update = np.concatenate([part.reshape(b, -1) for part in (decay, key, delta)], axis=1)
    count = np.arange(b, dtype=np.int32)
    node = Node(
        "GatedDeltaStateReplay",
        [("state", state), ("state_update", update), ("count", count)],
        [("new_state", np.float32, state.shape)],
        {"key_heads": hk, "state_update_capacity": capacity},
        domain="deltaworks",
    )
    expected = np.stack(
        [stepped(*row) for row in zip(state, decay, key, delta, count, strict=True)]
    )
    assert_same_bits(run(node)["new_state"], expected)
    outputs = {"new_state": state.copy()}
    run_bound(session(node.model()), node.feeds() | {"state": outputs["new_state"]}, outputs)
    assert_same_bits(outputs["new_state"], expected, "in place")


def backing_node(op, buffers, metadata):
    names = ("source_backing", "capture_backing", "destination_backing")
    inputs = [*zip(names, buffers, strict=True), ("metadata", np.array(metadata, np.int64))]
    return Node(op, inputs, [("destination_out", buffers[2].dtype, buffers[2].shape)])


def run_backing(node, in_place):
    """destination_out, bound to destination_backing's memory or not."""
    destination = node.feeds()["destination_backing"].copy()
    output = destination if in_place else poison(destination.dtype, destination.shape)
    feeds = node.feeds() | {"destination_backing": destination}
    run_bound(session(node.model()), feeds, {"destination_out": output})
    return output


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kept", [0, 1, 3, 4])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_conv_backing(dtype, kept, in_place):
    batch, channels, width, capacity = 2, 3, 3, 4
    source, capture, destination = (normal(60, seed=i).astype(dtype) for i in range(3))
    at = (5, 11, 7)  # source, destination, capture, in elements
    size = np.dtype(dtype).itemsize
    node = backing_node(
        "ConvStateReplay",
        (source, capture, destination),
        [*(offset * size for offset in at), batch, channels, width, capacity, kept],
    )
    state = source[at[0] :][: batch * channels * width].reshape(batch, channels, width)
    update = capture[at[2] :][: batch * capacity * channels].reshape(batch, capacity, channels)
    expected = destination.copy()
    new = np.stack([shifted(state[b], update[b], kept) for b in range(batch)])
    expected[at[1] : at[1] + new.size] = new.reshape(-1)
    assert_same_bits(run_backing(node, in_place), expected)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("heads", [(6, 3), (5, 3)], ids=["grouped", "uneven"])
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("gap", [0, 2], ids=["dense", "apart"])
def test_gated_delta_backing(gap, per_key, heads, in_place):
    (hv, hk), v, k, capacity, kept = heads, 7, 11, 4, 3
    state = normal(hv, v, k)
    decay = np.abs(normal(capacity, hv, *([k] if per_key else []), seed=1))
    key, delta = normal(capacity, hk, k, seed=2), normal(capacity, hv, v, seed=3)
    source = np.concatenate([normal(3, seed=4), state.reshape(-1)])
    space = normal(gap, seed=5)
    parts = [normal(2), decay.reshape(-1), key.reshape(-1), space, delta.reshape(-1)]
    capture = np.concatenate(parts)
    key_at = 2 + decay.size
    destination = normal(state.size + 9, seed=6)
    node = backing_node(
        "GatedDeltaNetStateReplay",
        (source, capture, destination),
        [3, 5, 2, key_at, key_at + key.size + gap, hv, v, k, hk, capacity, kept],
    )
    expected = destination.copy()
    expected[5 : 5 + state.size] = stepped(state, decay, key, delta, kept).reshape(-1)
    assert_same_bits(run_backing(node, in_place), expected)
