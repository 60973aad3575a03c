"""tools/report: the tables of measured runs, and that the page's are those of its runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/report"))

import benchmark_report  # noqa: E402
import tables  # noqa: E402

MISSING = {"name": "its kernel", "missing": "no kernel"}


def result(call, us, **others):
    peer = {"name": "its kernel", "ours": {"median_us": us}, "theirs": {"median_us": 4 * us}}
    return {
        "operator": "gated_delta_net",
        "shape": "2 heads",
        "model": "large",
        "call": call,
        "type": "float32",
        "right": True,
        "median_us": us,
        "spread": 0.01,
        "ceiling": "fma peak",
        "share": 0.625,
        "rate": 1e9,
        "flops": 1e3 * us,
        "bytes": 10 * us,
        "peer": peer | {"ratio": 4.0},
    } | others


def run(group="a", instruction_set="AVX3", threads=1, results=None):
    ggml = [{"call": "1 token", "ours": {"median_us": 2}, "theirs": {"median_us": 3}, "ratio": 1.5}]
    data = {
        "processor": "A processor",
        "cores": 2,
        "caches": {"L2": 1 << 20},
        "compiler": "GNU",
        "instruction_set": instruction_set,
        "threads": threads,
        "peer": "ONNX Runtime 1",
        "ceilings": {
            "fma peak": 2e11,
            "update in place": {"268435456": 2e10, "1048576": 9e10},
        },
        "results": results or [result("1 token", 100.0), result("8 tokens", 12345.0)],
        "ggml": {
            "name": "ggml 1",
            "operators": [{"operator": "gated_delta_net", "shape": "2 heads", "results": ggml}],
        },
    }
    return tables.Run(group, data)


def cells(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_a_column_for_each_run():
    rows = cells(tables.make("operators", [run(), run(instruction_set="AVX2", threads=2)]))
    assert rows[0] == ["call", "bound by", "AVX-512, 1 thread", "AVX2, 2 threads"]
    assert rows[2][0] == "**gated_delta_net**: 2 heads (large)"
    assert rows[3] == ["1 token", "fma peak"] + ["100 us, **62%**"] * 2
    assert rows[4][2] == "12.3 ms, **62%**"
    assert {len(row) for row in rows} == {4}


def test_a_spread_that_matters_is_shown():
    noisy = run(results=[result("1 token", 1.0, spread=0.2)])
    assert "1.00 us ± 20%" in tables.make("operators", [noisy])


def test_only_the_first_shape_and_what_is_right():
    results = [result("1 token", 1.0), result("wrong", 1.0, right=False)]
    results.append(result("1 token", 2.0, model="small", shape="1 head"))
    text = tables.make("operators", [run(results=results)])
    assert "small" not in text and "wrong" not in text


def test_ceilings_from_the_smallest():
    rows = cells(tables.make("ceilings", [run()]))
    assert rows[2:] == [
        ["fma peak", "", "200 GFLOP/s"],
        ["update in place", "1 MiB", "90.0 GB/s"],
        ["update in place", "256 MiB", "20.0 GB/s"],
    ]


def test_peers_and_what_they_lack():
    results = [result("1 token", 100.0), result("8 tokens", 5.0, peer=MISSING)]
    text = tables.make("peers", [run(results=results)])
    assert "| 400 us : 100 us = **4.0x** |" in text
    assert "| 8 tokens | it has none |" in text
    assert "beside ggml 1" in text and "| 3.00 us : 2.00 us = **1.50x** |" in text


def test_types_are_ratios_of_one_run():
    results = [result("1 token", 100.0), result("1 token", 50.0, type="bfloat16")]
    rows = cells(tables.make("types", [run(results=results), run(instruction_set="AVX2")]))
    assert rows[0] == ["call", "bfloat16, AVX-512, 1 thread"]
    assert rows[2] == ["gated_delta_net, 1 token", "0.50"]


def test_threads_beside_one_thread_of_the_same_run():
    several = [
        run(instruction_set=name, threads=2, results=[result(call, 52.0, alone={"ratio": 1.92})])
        for name, call in (("AVX3", "1 token"), ("AVX2", "8 tokens"))
    ]
    rows = cells(tables.make("threads", [run(), *several]))
    assert rows[2:] == [
        ["gated_delta_net, 1 token", "1.92x", ""],
        ["gated_delta_net, 8 tokens", "", "1.92x"],
    ]
    assert tables.make("threads", [run()]) == ""


def test_a_summary_of_shares_and_peers():
    several = run(threads=2)
    rows = cells(tables.make("summary", [run(), run(instruction_set="AVX2"), several]))
    assert rows[0] == ["call", "AVX-512", "beside ONNX Runtime 1", "AVX2", "beside ONNX Runtime 1"]
    assert rows[2:] == [["gated_delta_net, 1 token", *["62% of fma peak", "4.0x"] * 2]]


def test_a_model_has_its_shares_before_and_after():
    side = {phase: {"tokens_per_second": 10.0} for phase in ("prefill", "decode")}
    shares = {phase: {"LinearAttention": 0.25, "MatMul": 0.75} for phase in side}
    data = {"package": "m, int4", "prompt": 512, "threads": 1}
    data["stock"] = side | {"shares": shares}
    data["ours"] = {phase: {"tokens_per_second": 12.0} for phase in side}
    data["ours"]["shares"] = {phase: {} for phase in side}
    rows = cells(tables.make("models", [tables.Run("a", data), run()]))
    assert rows[2] == [
        *["m, int4", "1", "prefill, 512 tokens", "10.0", "12.0", "**1.20x**", "0%", "25%"]
    ]


def test_sections_are_replaced_and_the_rest_is_kept():
    page = "text\n<!-- begin ceilings a -->\nold\n<!-- end -->\nmore\n"
    filled = benchmark_report.filled(page, [run("a"), run("b", instruction_set="AVX2")])
    assert filled.startswith("text\n") and filled.endswith("<!-- end -->\nmore\n")
    assert "old" not in filled and "AVX-512" in filled and "AVX2" not in filled
    assert benchmark_report.filled(filled, [run("a")]) == filled


@pytest.mark.parametrize("name", ["ceilings nowhere", "no_such_table a"])
def test_a_section_without_runs_is_an_error(name):
    with pytest.raises(ValueError, match=name.split()[0]):
        benchmark_report.filled(f"<!-- begin {name} -->\n<!-- end -->\n", [run("a")])


@pytest.mark.parametrize("name", ["docs/performance.md", "README.md"])
def test_the_pages_show_their_runs(name):
    page = (ROOT / name).read_text()
    runs = [tables.load(path) for path in sorted((ROOT / "docs/performance").glob("*.json"))]
    assert re.search("<!-- begin", page) and runs
    assert benchmark_report.filled(page, runs) == page, "run tools/report/benchmark_report.py"


def test_a_single_run_is_printed(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(run().data))
    command = [sys.executable, ROOT / "tools/report/benchmark_report.py", file]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "### operators" in printed and "### peers" in printed and "### models" not in printed


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="tools/report/requirements.txt is not installed")
    import roofline

    roofline.draw([run(), run(instruction_set="AVX2")], tmp_path / "roofline.svg")
    text = (tmp_path / "roofline.svg").read_text()
    for word in ("AVX-512, 1 thread", "AVX2, 1 thread", "peak of fma: 200 GFLOP/s", "ggml 1"):
        assert word in text
