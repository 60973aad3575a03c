"""The choice of an engine, the environment's and the argument's, and the trace of calls."""

import os
import re
import subprocess
import sys

import deltaworks
import numpy as np
import pytest
from support import normal, offsets, same_bits

CALL = """
import sys
import deltaworks, numpy as np
{more}
result = deltaworks.gated_delta_net(**np.load(sys.argv[1]){options})
np.save(sys.argv[1] + ".npy", result.output)
"""


def problem():
    rng = np.random.default_rng(7)
    return {
        "query": normal(rng, 40, 1, 32, scale=0.2),
        "key": normal(rng, 40, 1, 32, scale=0.2),
        "value": normal(rng, 40, 2, 16),
        "cu_seqlens": offsets(40),
        "decay": -np.abs(normal(rng, 40, 2, scale=0.1)),
        "beta": normal(rng, 40, 2, scale=0.1) + 0.5,
    }


def run_elsewhere(folder, environment, options="", more="", status=0):
    """The output of a process with that environment, and what it wrote to standard error."""
    path = str(folder / "case.npz")
    np.savez(path, **problem())
    done = subprocess.run(
        [sys.executable, "-c", CALL.format(options=options, more=more), path],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    return None if status else np.load(path + ".npy"), done.stderr


def test_engines_agree_and_differ_in_bits():
    case = problem()
    auto, recurrent, chunked = (
        deltaworks.gated_delta_net(**case, engine=engine).output
        for engine in ("auto", "recurrent", "chunked")
    )
    same_bits(auto, recurrent)
    np.testing.assert_allclose(chunked, recurrent, rtol=0, atol=1e-5 * np.abs(recurrent).max())
    assert np.any(chunked != recurrent)


@pytest.mark.parametrize("engine", ["recurrent", "chunked", "auto", ""])
def test_the_environment_decides_where_the_argument_does_not(tmp_path, engine):
    expected = deltaworks.gated_delta_net(**problem(), engine=engine or "auto").output
    output, _ = run_elsewhere(tmp_path, {"DELTAWORKS_ENGINE": engine})
    same_bits(output, expected)


def test_the_argument_goes_before_the_environment(tmp_path):
    expected = deltaworks.gated_delta_net(**problem(), engine="recurrent").output
    for wanted in ("chunked", "no such engine"):
        environment = {"DELTAWORKS_ENGINE": wanted}
        output, _ = run_elsewhere(tmp_path, environment, ", engine='recurrent'")
        same_bits(output, expected)


@pytest.mark.parametrize(
    "wanted, fragment",
    [("fast", 'is "fast", expected one of'), ("deferred", '"deferred", which does not exist yet')],
)
def test_other_engines_are_refused(tmp_path, wanted, fragment):
    with pytest.raises(ValueError, match="gated_delta_net: engine is ") as caught:
        deltaworks.gated_delta_net(**problem(), engine=wanted)
    assert fragment in str(caught.value)
    _, error = run_elsewhere(tmp_path, {"DELTAWORKS_ENGINE": wanted}, status=1)
    assert f'gated_delta_net: DELTAWORKS_ENGINE is "{wanted}"' in error and fragment in error


def test_a_trace_has_one_line_for_each_call(tmp_path):
    more = "deltaworks.gated_delta_rates(*np.zeros((2, 3, 4), 'f4'), *np.zeros((2, 4), 'f4'))"
    _, error = run_elsewhere(tmp_path, {"DELTAWORKS_TRACE": "1"}, ", engine='chunked'", more)
    rates, net = error.splitlines()
    assert re.fullmatch(
        r"deltaworks: gated_delta_rates float32: tokens 3, value_heads 4; direct; \d+\.\d us", rates
    )
    assert re.fullmatch(
        r"deltaworks: gated_delta_net float32: sequences 1, tokens 40, key_heads 1, value_heads 2, "
        r"key_dim 32, value_dim 16, capacity 0; chunked; \d+\.\d us",
        net,
    )


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_is_traced_unasked(tmp_path, value):
    assert run_elsewhere(tmp_path, {"DELTAWORKS_TRACE": value})[1] == ""
