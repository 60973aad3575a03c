"""What the package promises beside its operators' results."""

import importlib.metadata
import inspect
import re
import subprocess
import sys
import threading
import time
import tomllib
import typing
from pathlib import Path

import deltaworks
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support import fresh_rng, longest_pause, normal, offsets, same_bits

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = [
    name for name in deltaworks.__all__ if inspect.isfunction(getattr(deltaworks, name))
    and name != "onnxruntime_library"
]  # fmt: skip


def test_the_version_is_the_projects():
    project = re.search(r"project\(deltaworks VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert deltaworks.__version__ == project[1]


def test_the_version_of_the_installed_package():
    try:
        distribution = importlib.metadata.distribution("deltaworks")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the build folder's package has no metadata; .ci/run tests what pip installs")
    assert distribution.version == deltaworks.__version__
    files = {Path(file).name for file in distribution.files}
    assert {"py.typed", "_core.pyi", "libdeltaworks_onnxruntime.so"} <= files


def test_both_builds_of_the_package_use_the_same_nanobind():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = (ROOT / "requirements.txt").read_text().splitlines()
    assert {name for name in project["build-system"]["requires"] if "nanobind" in name} <= {*pinned}


def test_every_operator_of_the_library_has_its_function():
    headers = (ROOT / "include/deltaworks").glob("*.hpp")
    declared = {
        name for header in headers
        for name in re.findall(r"DELTAWORKS_EXPORT void (\w+)\(\s*const Cpu&", header.read_text())
    }  # fmt: skip
    assert declared and declared <= set(OPERATORS)


@pytest.mark.parametrize("name", OPERATORS)
def test_functions_are_documented_and_typed(name):
    function = getattr(deltaworks, name)
    signature = inspect.signature(function)
    assert {"out", "threads"} <= set(signature.parameters)
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        documented = rf"^ +(\w+, )*{parameter.name}(, \w+)*( :.*)?$"
        assert re.search(documented, function.__doc__, re.MULTILINE), parameter.name
    assert issubclass(typing.get_type_hints(function)["return"], tuple)
    assert "ValueError" in function.__doc__


def test_the_library_serves_a_stock_session():
    rng = fresh_rng()
    feeds = {
        "input": normal(rng, 5, 8),
        "weight": normal(rng, 8, 1, 4),
        "cu_seqlens": offsets(2, 3),
        "initial_state": normal(rng, 2, 8, 3),
    }
    node = helper.make_node(
        "VarlenCausalConvWithState",
        ["input", "weight", "cu_seqlens", "", "initial_state"],
        ["output", "final_state"],
        domain="com.microsoft",
        activation="silu",
    )
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(n, kinds[a.dtype], a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [5, 8]),
         helper.make_tensor_value_info("final_state", TensorProto.FLOAT, [2, 8, 3])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(deltaworks.onnxruntime_library())
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = deltaworks.varlen_causal_conv(**feeds, activation="silu")
    for actual, wanted in zip(session.run(None, feeds), expected, strict=False):
        same_bits(actual, wanted)


def long_call(tokens):
    rng, heads, dim = fresh_rng(), 4, 128
    rows = normal(rng, tokens, heads, dim)
    return lambda: deltaworks.gated_delta_net(rows, rows, rows, offsets(tokens), qk_l2_norm=True)


def test_the_interpreter_lock_is_released():
    """A call that held the lock would stop the other thread for its whole length, every time."""
    tokens, tries = 1000, []
    for _ in range(20):
        seconds, pause = longest_pause(long_call(tokens))
        if seconds < 0.1:
            tokens *= 3
            continue
        if pause < seconds / 2:
            return
        tries.append((seconds, pause))
    pytest.fail(f"seconds of a call, longest pause of another thread: {tries}")


def test_threads_share_a_call():
    rng = fresh_rng()
    rows = normal(rng, 2000, 4, 64)
    for _ in range(20):  # on a busy machine the other thread may come late
        own, all_threads = time.thread_time(), time.process_time()
        deltaworks.gated_delta_net(rows, rows, rows, offsets(2000), qk_l2_norm=True, threads=2)
        own, all_threads = time.thread_time() - own, time.process_time() - all_threads
        if own < 0.9 * all_threads:
            return
    pytest.fail(f"the calling thread did {own} of {all_threads} s")


def test_calls_from_many_threads():
    rng = fresh_rng()
    rows, state = normal(rng, 40, 2, 16), normal(rng, 1, 2, 16, 16)
    arguments = {"query": rows, "key": rows, "value": rows, "cu_seqlens": offsets(40)}
    arguments |= {"initial_state": state, "qk_l2_norm": True}
    expected = deltaworks.gated_delta_net(**arguments)
    results = [None] * 8

    def work(index):
        for _ in range(50):
            results[index] = deltaworks.gated_delta_net(**arguments, threads=1 + index % 3)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        same_bits(result.output, expected.output)
        same_bits(result.final_state, expected.final_state)


def test_arrays_are_given_back():
    rows, cu_seqlens = np.ones((4, 2, 8), np.float32), offsets(4)
    before = [sys.getrefcount(array) for array in (rows, cu_seqlens)]
    result = deltaworks.gated_delta_net(rows, rows, rows, cu_seqlens)
    with pytest.raises(ValueError):
        deltaworks.gated_delta_net(rows, rows, rows, cu_seqlens, scale=float("nan"))
    assert [sys.getrefcount(array) for array in (rows, cu_seqlens)] == before
    holders = sys.getrefcount(result.output)  # the tuple and this call's argument
    assert holders == 2


def test_the_example_runs():
    run = subprocess.run(
        [sys.executable, ROOT / "examples/decode.py"], capture_output=True, text=True, check=True
    )
    assert "accepted [3, 0] of 4 tokens" in run.stdout
