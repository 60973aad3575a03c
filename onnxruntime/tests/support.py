"""One-node models, sessions with and without the library, runs on bound memory."""

import functools
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get(
    "DELTAWORKS_ONNXRUNTIME_LIBRARY",
    str(ROOT / "build/release/lib/libdeltaworks_onnxruntime.so"),
)
PROVIDER = "DeltaworksExecutionProvider"
# "operators", or "provider": sessions with our operators get the execution provider as well, which
# then claims their nodes.
ENTRY_POINT = os.environ.get("DELTAWORKS_ENTRY_POINT", "operators")
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
TELLS_ASSIGNMENTS = VERSION >= (1, 24)
# What ONNX Runtime knows of com.microsoft's GatedDeltaNet and VarlenCausalConvWithState by itself.
HAS_SCHEMAS, HAS_PACKED_SCHEMA, HAS_KERNELS = (v <= VERSION for v in [(1, 30), (1, 31), (1, 32)])
BFLOAT16 = ml_dtypes.bfloat16
ONNX_TYPE = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(BFLOAT16): TensorProto.BFLOAT16,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}
TYPES = [np.float32, np.float16, BFLOAT16]
# One rounding to the type of results that agree to a few float32 roundings.
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3, np.dtype(BFLOAT16): 1.6e-2}


def type_name(dtype):
    return np.dtype(dtype).name


@dataclass
class Node:
    """An operator with its operands in order; None is an operand that the node leaves out."""

    op: str
    inputs: list  # of (name, array) or None
    outputs: list  # of (name, dtype, shape) or None
    attributes: dict = field(default_factory=dict)
    domain: str = "com.microsoft"

    def model(self, *, symbolic=(), constant=()):
        """Inputs named in `symbolic` get unknown dims, those of "?name" an unknown rank; those in
        `constant` are initializers."""

        def value(name, dtype, shape):
            if "?" + name in symbolic:
                shape = None
            elif name in symbolic:
                shape = [f"{name}_{dim}" for dim in range(len(shape))]
            return helper.make_tensor_value_info(name, ONNX_TYPE[np.dtype(dtype)], shape)

        node = helper.make_node(
            self.op,
            [operand[0] if operand else "" for operand in self.inputs],
            [operand[0] if operand else "" for operand in self.outputs],
            name="node",
            domain=self.domain,
            **self.attributes,
        )
        graph = helper.make_graph(
            [node],
            "graph",
            [
                value(name, array.dtype, array.shape)
                for name, array in filter(None, self.inputs)
                if name not in constant
            ],
            [value(*output) for output in filter(None, self.outputs)],
            [numpy_helper.from_array(self.feeds()[name], name) for name in constant],
        )
        return serialized(graph)

    def feeds(self):
        return dict(filter(None, self.inputs))

    def poisoned(self):
        return {name: poison(dtype, shape) for name, dtype, shape in filter(None, self.outputs)}


def serialized(graph):
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    opsets.append(helper.make_opsetid("deltaworks", 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString()


def poison(dtype, shape):
    """Memory full of NaN, so that what a kernel leaves unwritten shows."""
    array = np.empty(shape, dtype)
    array.view(np.uint8).reshape(-1)[:] = 0xFF
    return array


@functools.cache
def provider_devices():
    """The execution provider's device; registers the library with the process."""
    ort.register_execution_provider_library("deltaworks", str(LIBRARY))
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]


def session(model, *, library=LIBRARY, threads=1, provider=None, log=3, engine=None):
    """Sessions with the library have its operators, and the execution provider when the entry point
    says so. `library=None` is stock ONNX Runtime, with `provider=True` the provider alone."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = log
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if engine is not None:
        options.add_session_config_entry("deltaworks.engine", engine)
    if library:
        options.register_custom_ops_library(str(library))
    if provider is None:
        provider = library is not None and ENTRY_POINT == "provider"
    if not provider:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    options.add_provider_for_devices(provider_devices(), {})
    if not TELLS_ASSIGNMENTS:
        options.enable_profiling = True
        options.profile_file_prefix = new_profile()
    return ort.InferenceSession(model, options)


@functools.cache
def profiles():
    return tempfile.TemporaryDirectory(prefix="deltaworks-profiles-")


def new_profile():
    """A prefix of its own: ONNX Runtime adds the second only, and two sessions that begin within
    one would write into one file."""
    return str(Path(tempfile.mkdtemp(dir=profiles().name)) / "profile")


def profiled_nodes(running):
    """(name, provider) of each node run since the session began; ends its profile."""
    with open(running.end_profiling()) as profile:
        events = [event for event in json.load(profile) if event["cat"] == "Node"]
    names = (e["name"].removesuffix("_kernel_time") for e in events)
    pairs = zip(names, (e["args"].get("provider") for e in events), strict=True)
    return list(dict.fromkeys(pair for pair in pairs if pair[1]))


def assert_claimed(running, operators):
    """That the execution provider has nodes of these operators and no others. ONNX Runtime before
    1.24 tells their number only, in the profile of what has run."""
    if TELLS_ASSIGNMENTS:
        assert claimed(running) == sorted(operators)
    else:
        providers = [provider for _, provider in profiled_nodes(running)]
        assert providers.count(PROVIDER) == len(operators), providers


def claimed(running):
    """The operators that the execution provider has, sorted; ONNX Runtime 1.24 and later tells."""
    return sorted(
        node.op_type
        for part in running.get_provider_graph_assignment_info()
        if part.ep_name == PROVIDER
        for node in part.get_nodes()
    )


def bind(bound, name, array, put):
    kind = ONNX_TYPE[array.dtype]
    put(name, "cpu", 0, kind, list(array.shape), array.ctypes.data)
    return array


def run_bound(running, feeds, outputs):
    """Runs on exactly this memory; outputs is a dict of arrays to write."""
    binding = running.io_binding()
    for name, array in feeds.items():
        bind(binding, name, array, binding.bind_input)
    for name, array in outputs.items():
        bind(binding, name, array, binding.bind_output)
    running.run_with_iobinding(binding)
    return outputs


def run(node, *, library=LIBRARY, threads=1, symbolic=()):
    """Outputs by name, written over NaN."""
    running = session(node.model(symbolic=symbolic), library=library, threads=threads)
    return run_bound(running, node.feeds(), node.poisoned())


def run_stock(node):
    """The same node on ONNX Runtime's own kernels."""
    if not HAS_KERNELS:
        pytest.skip("ONNX Runtime before 1.32 has no kernel to compare with")
    return run(node, library=None)


def assert_same_bits(actual, expected, what=""):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    same = np.ascontiguousarray(actual).view(np.uint8) == np.ascontiguousarray(expected).view(
        np.uint8
    )
    assert same.all(), f"{what}: {np.count_nonzero(~same)} of {same.size} bytes differ"


def assert_close(actual, expected, tolerance, what=""):
    """Within `tolerance` of the largest magnitude."""
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    assert np.isfinite(actual).all(), f"{what} is not finite everywhere"
    if actual.size == 0:
        return
    error = np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-3)
    assert error <= tolerance, f"{what}: relative error {error:.2e}, at most {tolerance:.1e}"


def offsets(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
