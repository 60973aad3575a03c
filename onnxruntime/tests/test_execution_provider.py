"""What the execution provider claims gives the bits of the custom operator, wherever it stands."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import paged_attention_nodes as paged
import pytest
import test_dflash2_dynamic_conv as dflash2
import test_varlen_causal_conv as conv
from gated_delta_net_nodes import Problem
from onnx import TensorProto, helper
from support import (
    HAS_SCHEMAS,
    LIBRARY,
    ONNX_TYPE,
    PROVIDER,
    TYPES,
    Node,
    assert_claimed,
    assert_same_bits,
    profiled_nodes,
    provider_devices,
    run_bound,
    serialized,
    session,
    type_name,
)
from test_sessions import mixed_feeds, mixed_graph
from test_state_replay import backing_node, normal

knows_the_operators = pytest.mark.skipif(
    not HAS_SCHEMAS, reason="ONNX Runtime before 1.30 knows the operators from the library only"
)


def batch_replay(op, arrays, **attributes):
    inputs = list(zip(("state", "state_update", "count"), arrays, strict=True))
    outputs = [("new_state", arrays[0].dtype, arrays[0].shape)]
    return Node(op, inputs, outputs, attributes, domain="deltaworks")


def nodes(dtype):
    """One node of each operator; replays of the delta rule have one type."""
    capture = {"capacity": 2, "capture_count": (1, 2, 0)}
    count = np.array([2, 0], np.int32)
    yield conv.Problem(dtype=dtype, bias=False, **capture).node()
    yield Problem(dtype=dtype, form="packed", activation="qwen", **capture).node()
    yield Problem(dtype=dtype, gate_dtype=dtype).node()
    yield paged.Problem(dtype=dtype, rotary_dim=8, sink=True).node()
    state, update = normal(2, 6, 3).astype(dtype), normal(2, 4, 6).astype(dtype)
    yield batch_replay("ConvStateReplay", (state, update, count))
    buffers = [normal(60, seed=i).astype(dtype) for i in range(3)]
    yield backing_node("ConvStateReplay", buffers, [0, 0, 0, 2, 3, 3, 4, 2])
    yield dflash2.Problem(dtype=dtype, stage="residual").node()
    if dtype == np.float32:
        update = normal(2, 2 * (4 + 2 * 8 + 4 * 5))
        states = (normal(2, 4, 5, 8), update, count)
        sizes = {"key_heads": 2, "state_update_capacity": 2}
        yield batch_replay("GatedDeltaStateReplay", states, **sizes)
        buffers = [normal(size, seed=size) for size in (160, 82, 161)]
        metadata = [0, 1, 0, 8, 40, 4, 5, 8, 2, 2, 1]
        yield backing_node("GatedDeltaNetStateReplay", buffers, metadata)


# Operators of which this library serves some widths only: no claim where the graph tells none.
BOUNDED = ("GatedDeltaNet", "PagedAttention", "DFlash2DynamicConv")

EVERY_NODE = [
    pytest.param(node, id=f"{node.domain}.{node.op}-{type_name(dtype)}-{index}")
    for dtype in TYPES
    for index, node in enumerate(nodes(dtype))
]


def test_the_device_is_this_processor():
    (device,) = provider_devices()
    assert device.ep_name == PROVIDER
    assert device.ep_vendor == "Deltaworks"
    assert device.device.type == ort.OrtHardwareDeviceType.CPU


@pytest.mark.parametrize("shapes", ["known", "unknown dims", "unknown ranks"])
@pytest.mark.parametrize("node", EVERY_NODE)
def test_every_operator_gives_the_bits_of_the_custom_operator(node, shapes):
    mark = {"known": None, "unknown dims": "", "unknown ranks": "?"}[shapes]
    symbolic = [] if mark is None else [mark + name for name in node.feeds()]
    running = session(node.model(symbolic=symbolic), provider=True)
    expected = run_bound(session(node.model(), provider=False), node.feeds(), node.poisoned())
    actual = run_bound(running, node.feeds(), node.poisoned())
    for name, array in expected.items():
        assert_same_bits(actual[name], array, name)
    assert_claimed(running, [] if symbolic and node.op in BOUNDED else [node.op])


@knows_the_operators
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_alone_it_claims_before_the_built_in_kernels(dtype):
    nodes = conv.Problem(dtype=dtype, bias=False).node(), Problem(dtype=dtype).node()
    for node in nodes:
        symbolic = node.feeds().keys() - {"initial_state"}
        running = session(node.model(symbolic=symbolic), library=None, provider=True)
        assert_claimed(running, [node.op])
        expected = run_bound(session(node.model(), provider=False), node.feeds(), node.poisoned())
        actual = run_bound(running, node.feeds(), node.poisoned())
        for name, array in expected.items():
            assert_same_bits(actual[name], array, name)


def test_the_profile_names_it(tmp_path):
    """On any version; the rest of the graph stays where it was."""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.register_custom_ops_library(LIBRARY)
    options.add_provider_for_devices(provider_devices(), {})
    running = ort.InferenceSession(mixed_graph(), options)
    assert running.get_providers() == [PROVIDER, "CPUExecutionProvider"]
    running.run(None, mixed_feeds())
    providers = [provider for _, provider in profiled_nodes(running)]
    assert providers == ["CPUExecutionProvider", PROVIDER, PROVIDER, "CPUExecutionProvider"]


@pytest.mark.parametrize("threads", [1, 2])
def test_between_built_in_operators(threads):
    expected = session(mixed_graph(), provider=False).run(None, mixed_feeds())
    running = session(mixed_graph(), provider=True, threads=threads)
    for _ in range(3):
        for actual, array in zip(running.run(None, mixed_feeds()), expected, strict=True):
            assert_same_bits(actual, array)


@pytest.mark.parametrize("constant", [(), ("weight", "bias"), "all"], ids=["none", "some", "all"])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_constants(dtype, constant):
    node = conv.Problem(dtype=dtype).node()
    expected = run_bound(session(node.model(), provider=False), node.feeds(), node.poisoned())
    names = list(node.feeds()) if constant == "all" else constant
    running = session(node.model(constant=names), provider=True)
    fed = {name: array for name, array in node.feeds().items() if name not in names}
    actual = run_bound(running, fed, node.poisoned())
    for name, array in expected.items():
        assert_same_bits(actual[name], array, name)


def branches(node):
    """If(which): the node, its weights from the graph outside, else the state as it was."""
    outputs = [
        helper.make_tensor_value_info(name, ONNX_TYPE[np.dtype(dtype)], shape)
        for name, dtype, shape in node.outputs
    ]
    inputs = [
        helper.make_tensor_value_info(name, ONNX_TYPE[array.dtype], array.shape)
        for name, array in node.feeds().items()
    ]
    names = [operand[0] if operand else "" for operand in node.inputs]
    then = helper.make_node(
        node.op, names, ["output", "final_state"], domain=node.domain, **node.attributes
    )
    otherwise = [
        helper.make_node("Identity", [source], [target])
        for source, target in (("input", "output"), ("initial_state", "final_state"))
    ]
    chosen = helper.make_node(
        "If",
        ["which"],
        ["y", "new_state"],
        then_branch=helper.make_graph([then], "then", [], outputs),
        else_branch=helper.make_graph(otherwise, "else", [], outputs),
    )
    inputs.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    results = [
        helper.make_tensor_value_info(name, output.type.tensor_type.elem_type, None)
        for name, output in zip(("y", "new_state"), outputs, strict=True)
    ]
    return serialized(helper.make_graph([chosen], "graph", inputs, results))


def test_in_a_subgraph():
    node = conv.Problem(bias=False).node(outputs=("output", "final_state"))
    expected = run_bound(session(node.model(), provider=False), node.feeds(), node.poisoned())
    running = session(branches(node), provider=True)
    y, state = running.run(None, node.feeds() | {"which": np.array(True)})
    assert_same_bits(y, expected["output"])
    assert_same_bits(state, expected["final_state"])
    y, state = running.run(None, node.feeds() | {"which": np.array(False)})
    assert_same_bits(y, node.feeds()["input"])
    assert_claimed(running, [node.op])


@pytest.mark.parametrize("unread", [("key_cache",), ("key_cache", "value_cache")], ids=len)
@pytest.mark.parametrize("constant", [(), ("key_cache", "value_cache")], ids=["fed", "constant"])
@pytest.mark.parametrize("provider", [False, True], ids=["operators", "provider"])
def test_a_cache_output_that_nothing_reads_keeps_the_cache(provider, constant, unread):
    """The fused node drops such an output; the node inside still has memory of its own for it."""
    first = paged.Problem()
    caches = {name: first.operands()[name] for name in ("key_cache", "value_cache", "block_table")}
    # Reads what the first call would have written, had it written the cache.
    second = paged.Problem(lengths=(1, 1, 1), past=(2, 7, 8), seed=1)
    calls = first.node(), second.node(**caches)
    symbolic = [name for name in calls[0].feeds() if name not in ("key_cache", "value_cache")]
    model = onnx.load_from_string(calls[0].model(symbolic=symbolic, constant=constant))
    for name in unread:
        model.graph.output.remove(next(o for o in model.graph.output if o.name == f"{name}_out"))
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "tokens"
    running = session(model.SerializeToString(), provider=provider)
    for node in calls:
        expected = run_bound(session(node.model(), provider=False), node.feeds(), node.poisoned())
        fed = {name: a.copy() for name, a in node.feeds().items() if name not in constant}
        read = {n: a for n, a in node.poisoned().items() if n.removesuffix("_out") not in unread}
        for name, array in run_bound(running, fed, read).items():
            assert_same_bits(array, expected[name], name)
        for name, array in fed.items():
            assert_same_bits(array, node.feeds()[name], name)
    if provider:
        assert_claimed(running, ["PagedAttention"])


def test_one_value_as_two_operands():
    """The fused node lists each value once."""
    node = Problem().node()
    feeds = node.feeds()
    expected = run_bound(
        session(node.model(), provider=False), feeds | {"beta": feeds["decay"]}, node.poisoned()
    )
    model = onnx.load_from_string(node.model())
    model.graph.node[0].input[list(model.graph.node[0].input).index("beta")] = "decay"
    model.graph.input.remove(next(i for i in model.graph.input if i.name == "beta"))
    del feeds["beta"]
    actual = run_bound(session(model.SerializeToString(), provider=True), feeds, node.poisoned())
    for name, array in expected.items():
        assert_same_bits(actual[name], array, name)


LIFE_CYCLE = """
import sys, onnxruntime as ort
for _ in range(2):
    ort.register_execution_provider_library("deltaworks", sys.argv[1])
    devices = [d for d in ort.get_ep_devices() if d.ep_name == sys.argv[2]]
    options = ort.SessionOptions()
    options.register_custom_ops_library(sys.argv[1])
    options.add_provider_for_devices(devices, {})
    session = ort.InferenceSession(sys.argv[3], options)
    del session, devices
    ort.unregister_execution_provider_library("deltaworks")
assert not [d for d in ort.get_ep_devices() if d.ep_name == sys.argv[2]]
"""


def test_it_can_be_unregistered_and_registered_again(tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(mixed_graph())
    command = [sys.executable, "-c", LIFE_CYCLE, LIBRARY, PROVIDER, str(model)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
