"""The built program's `bench`: what it prints, what it refuses. The figures are the machine's."""

import importlib.util
import json
import subprocess

import pytest
from test_command_line import PROGRAM, run, wrong

QUICK = ["--seconds", 0]
OPERATORS = {
    "causal_conv_with_state",
    "dflash2_dynamic_conv",
    "gated_delta_net",
    "gated_delta_rates",
    "linear_attention",
    "paged_attention",
    "varlen_causal_conv",
}


def bench(*arguments, **keywords):
    return run("bench", *arguments, *QUICK, **keywords)


def figures(*arguments):
    return json.loads(bench(*arguments, "--json").stdout)


def test_a_table_on_standard_output():
    result = bench("dflash2_dynamic_conv")
    assert result.stderr == b""  # progress is for terminals
    table = result.stdout.decode()
    assert "ceilings" in table and "GFLOP/s" in table
    assert "dflash2_dynamic_conv: 5120 channels" in table and "% of copy" in table
    assert max(map(len, table.splitlines())) <= 120


def test_every_operator_equals_the_reference_and_has_a_share():
    report = figures()
    assert {result["operator"] for result in report["results"]} >= OPERATORS
    for result in report["results"]:
        assert result["right"], result
        assert result["type"] == "float32" and result["model"]
        assert result["median_us"] > 0 and result["spread"] >= 0
        assert 0 < result["share"] < 3, result
        moved = result["flops"] if result["ceiling"] == "fma peak" else result["bytes"]
        seconds = 1e-6 * result["median_us"]
        assert result["rate"] == pytest.approx(moved / seconds)
    assert report["threads"] == 1 and report["ceilings"]["fma peak"] > 1e8
    assert report["instruction_set"] in report["instruction_sets"] and report["cores"] >= 1
    assert report["processor"] and report["compiler"] and report["version"]
    assert "peer" not in report


def test_types_and_threads():
    arguments = ["dflash2_dynamic_conv", "--type", "float16", "bfloat16", "--threads", 2]
    report = figures(*arguments)
    assert report["threads"] == 2
    types = [result["type"] for result in report["results"]]
    assert types[:4] == ["float16", "bfloat16"] * 2 and set(types) == {"float16", "bfloat16"}
    assert all(result["alone"]["ratio"] > 0 for result in report["results"])


def test_threads_that_share_a_processor_do_not_raise_the_ceiling():
    few = figures("gated_delta_rates")
    many = figures("gated_delta_rates", "--threads", 64 * few["cores"])
    assert many["ceilings"]["fma peak"] < 8 * few["cores"] * few["ceilings"]["fma peak"]


def test_an_instruction_set_is_named():
    target = {"DELTAWORKS_CPU_TARGET": "SSE4"}
    assert b"SSE4" in bench("dflash2_dynamic_conv", environment=target).stdout.splitlines()[0]


@pytest.mark.parametrize(
    "operator",
    [
        "causal_conv_with_state",
        "gated_delta_rates",
        "linear_attention",
        "paged_attention",
        "varlen_causal_conv",
    ],
)
def test_peers_are_compared_and_timed(operator):
    result = bench(operator, "--peers", "--json")
    report = json.loads(result.stdout)
    assert report["peer"].startswith("ONNX Runtime 1.")
    peers = [result["peer"] for result in report["results"] if "peer" in result]
    compared = [peer for peer in peers if "missing" not in peer]
    assert compared
    for peer in compared:
        assert peer["ours"]["median_us"] > 0 and peer["ratio"] > 0


@pytest.mark.parametrize("operator", ["gated_delta_net", "varlen_causal_conv"])
def test_ggml_is_measured_or_its_installation_named(operator):
    result = bench(operator, "--peers")
    if importlib.util.find_spec("xllamacpp"):
        assert b"ggml" in result.stdout and b"times as long" in result.stdout
        (figures,) = json.loads(bench(operator, "--peers", "--json").stdout)["ggml"]["operators"]
        assert figures["operator"] == operator
        for row in figures["results"]:
            assert row["theirs"]["median_us"] > 0 and row["flops"] > 0 and row["bytes"] > 0
    else:
        assert b"pip install xllamacpp" in result.stderr


def test_other_ways_to_the_same_results_are_timed_in_turns():
    report = figures("varlen_causal_conv")
    prepared = [r["variant"] for r in report["results"] if "variant" in r]
    assert {variant["name"] for variant in prepared} == {"with prepared weights"}
    assert all(variant["ratio"] > 0 for variant in prepared)
    dynamic = [result for result in report["results"] if "dynamic" in result["shape"]]
    assert len(dynamic) == 2 and not any("variant" in result for result in dynamic)


def test_what_the_runtime_lacks_is_said():
    report = figures("varlen_causal_conv", "--peers")
    dynamic = [result for result in report["results"] if "dynamic" in result["shape"]]
    assert all("dynamic" in result["peer"]["missing"] for result in dynamic)


@pytest.mark.parametrize(
    "arguments",
    [
        ["no_such_operator"],
        ["--type", "float64"],
        ["--threads", 0],
        ["--seconds", "-1"],
        ["--seconds", "nan"],
    ],
)
def test_wrong_calls(arguments):
    assert wrong("bench", *arguments)


def test_peers_without_onnxruntime_say_what_to_do():
    missing = {"DELTAWORKS_ONNXRUNTIME": "/nonexistent"}
    message = bench("--peers", status=1, environment=missing)
    assert b"scripts/setup.sh" in message.stderr and message.stdout == b""


def test_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [PROGRAM, "bench", "dflash2_dynamic_conv"], stdout=full, stderr=subprocess.PIPE
        )
    assert result.returncode == 1
    assert b"standard output" in result.stderr
