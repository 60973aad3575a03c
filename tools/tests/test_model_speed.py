"""tools/report/model_speed.py on the smallest package; its figures are the machine's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_genai")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/report"))

import model_speed  # noqa: E402

PACKAGE = ROOT / "onnxruntime/tests/data/dense/float32"
SCRIPT = ROOT / "tools/report/model_speed.py"


def call(*arguments, status=0):
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == status, result.stderr
    return result


def test_both_sides_are_timed_and_compared(tmp_path):
    figures = tmp_path / "figures.json"
    arguments = ["--prompt", 16, "--tokens", 5, "--rounds", 2, "--json", figures]
    result = call(PACKAGE, *arguments)
    assert "greedy tokens are the same" in result.stdout and "decode" in result.stdout
    assert "round 2 of 2, ours" in result.stderr
    report = json.loads(figures.read_text())
    assert report["equal_tokens"] and report["package"] == "dense, float32"
    assert 0 <= report["logit_difference"] < 1e-4
    for side in ("stock", "ours"):
        for phase in ("prefill", "decode"):
            assert report[side][phase]["tokens_per_second"] > 0
            shares = report[side]["shares"][phase]
            assert set(model_speed.OPERATORS) <= set(shares)
            assert sum(shares.values()) == pytest.approx(1)
    assert not list(PACKAGE.parent.glob(".model_speed-*"))


@pytest.mark.parametrize("arguments", [["/nonexistent"], [PACKAGE, "--tokens", 1]])
def test_wrong_calls(arguments):
    assert "error" in call(*arguments, status=2).stderr


def test_shares_by_phase():
    def node(operator, ts, dur, name="node_kernel_time"):
        return {"cat": "Node", "name": name, "ts": ts, "dur": dur, "args": {"op_name": operator}}

    runs = [{"cat": "Session", "name": "model_run", "ts": ts, "dur": 9} for ts in (100, 200, 300)]
    events = [node("A", 101, 3), node("B", 102, 1), node("A", 201, 1), node("A", 301, 1)]
    events += [node("B", 302, 2), node("B", 103, 50, "node_fence_before")]
    assert model_speed.shares(runs + events) == {
        "prefill": {"A": 0.75, "B": 0.25},
        "decode": {"A": 0.5, "B": 0.5},
    }


def test_rate_is_of_the_median():
    assert model_speed.rate(10, [1.0, 2.0, 3.0]) == {"tokens_per_second": 5.0, "spread": 0.5}
    assert model_speed.rate(10, [2.0]) == {"tokens_per_second": 5.0, "spread": 0.0}
