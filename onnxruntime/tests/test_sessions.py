"""The library inside sessions: beside other operators, more than once, in a larger graph."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest
from gated_delta_net_nodes import Problem
from onnx import TensorProto, helper
from support import (
    HAS_KERNELS,
    LIBRARY,
    TYPES,
    assert_same_bits,
    run,
    serialized,
    session,
    type_name,
)


def mixed_graph(kind=TensorProto.FLOAT):
    """FusedMatMul -> VarlenCausalConvWithState -> packed GatedDeltaNet -> QuickGelu."""

    def value(name, shape, dtype=kind):
        return helper.make_tensor_value_info(name, dtype, shape)

    def node(op, inputs, outputs, **attributes):
        return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)

    nodes = [
        node("FusedMatMul", ["x", "w"], ["mixed"]),
        node(
            "VarlenCausalConvWithState",
            ["mixed", "taps", "cu", "", "conv_state"],
            ["qkv", "new_conv_state"],
            activation="silu",
        ),
        node(
            "GatedDeltaNet",
            ["qkv", "", "", "cu", "decay", "beta", "state"],
            ["o", "new_state"],
            qk_l2_norm=1,
        ),
        node("QuickGelu", ["o"], ["y"]),
    ]
    inputs = [
        value("x", ["n", 6]),
        value("w", [6, 24]),
        value("taps", [24, 1, 4]),
        value("cu", ["b1"], TensorProto.INT32),
        value("conv_state", ["b", 24, 3]),
        value("decay", ["n", 2], TensorProto.FLOAT),
        value("beta", ["n", 2], TensorProto.FLOAT),
        value("state", ["b", 2, 4, 4], TensorProto.FLOAT),
    ]
    outputs = [
        value("y", ["n", 2, 4]),
        value("new_conv_state", ["b", 24, 3]),
        value("new_state", ["b", 2, 4, 4], TensorProto.FLOAT),
    ]
    return serialized(helper.make_graph(nodes, "graph", inputs, outputs))


def mixed_feeds():
    rng = np.random.default_rng(0)
    shapes = {"x": (7, 6), "w": (6, 24), "taps": (24, 1, 4), "conv_state": (2, 24, 3)}
    shapes |= {"decay": (7, 2), "beta": (7, 2), "state": (2, 2, 4, 4)}
    feeds = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    feeds["decay"] = -np.abs(feeds["decay"])
    feeds["cu"] = np.array([0, 2, 7], np.int32)
    return feeds


@pytest.mark.skipif(
    not HAS_KERNELS, reason="ONNX Runtime before 1.32 has no kernel to compare with"
)
def test_beside_other_microsoft_operators():
    ours, stock = session(mixed_graph()), session(mixed_graph(), library=None)
    for mine, theirs in zip(
        ours.run(None, mixed_feeds()), stock.run(None, mixed_feeds()), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_runs_repeat_to_the_bit():
    running = session(mixed_graph(), threads=2)
    first = running.run(None, mixed_feeds())
    for _ in range(20):
        for again, expected in zip(running.run(None, mixed_feeds()), first, strict=True):
            assert_same_bits(again, expected)


def test_one_session_serves_threads_at_the_same_time():
    running = session(mixed_graph())
    expected = running.run(None, mixed_feeds())
    with ThreadPoolExecutor(4) as pool:
        for outputs in pool.map(lambda _: running.run(None, mixed_feeds()), range(40)):
            for again, first in zip(outputs, expected, strict=True):
                assert_same_bits(again, first)


def test_sessions_one_after_another_and_together():
    node = Problem(activation="qwen").node()
    expected = run(node)
    sessions = [session(node.model(), threads=threads) for threads in (1, 2, 1)]
    del sessions[0]
    for running in sessions:
        output, state = running.run(None, node.feeds())
        assert_same_bits(output, expected["output"])
        assert_same_bits(state, expected["final_state"])


def test_a_second_registration_is_refused():
    options = ort.SessionOptions()
    for _ in range(2):
        options.register_custom_ops_library(LIBRARY)
    with pytest.raises(Exception, match="Domain already set in registry"):
        ort.InferenceSession(mixed_graph(), options)


@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
@pytest.mark.parametrize("rule", ["linear", "delta"])
def test_a_node_without_gates_finds_a_kernel(dtype, rule):
    """Two registered rows fit a 16-bit node that has neither decay nor beta."""
    outputs = run(Problem(dtype=dtype, gate_dtype=dtype, update_rule=rule).node())
    assert np.isfinite(outputs["output"].astype(np.float32)).all()


def test_constant_inputs_are_folded():
    node = Problem().node()
    expected = run(node)
    running = session(node.model(constant=list(node.feeds())))
    assert_same_bits(running.run(["output"], {})[0], expected["output"])


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_only_the_entry_points_are_exported():
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True
    )
    exported = sorted(line.split()[-1] for line in listed.stdout.splitlines())
    assert exported == ["CreateEpFactories", "RegisterCustomOps", "ReleaseEpFactory"]
