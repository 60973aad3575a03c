"""The session's configuration entry deltaworks.engine, by either entry point."""

import numpy as np
import pytest
from gated_delta_net_nodes import Problem
from support import HAS_SCHEMAS, LIBRARY, assert_close, assert_same_bits, run_bound, session

PROBLEM = Problem(lengths=(40, 7, 33), key_dim=32, value_dim=32, activation="softplus")
ENTRY_POINTS = pytest.mark.parametrize("provider", [False, True], ids=["operators", "provider"])


def outputs(provider, engine, problem=PROBLEM):
    node = problem.node()
    running = session(node.model(), provider=provider, engine=engine)
    return run_bound(running, node.feeds(), node.poisoned())


@ENTRY_POINTS
def test_the_entry_chooses_the_engine(provider):
    default, chunked, recurrent = (
        outputs(provider, engine) for engine in (None, "chunked", "recurrent")
    )
    assert_same_bits(default["output"], recurrent["output"])
    assert_close(chunked["output"], recurrent["output"], 1e-5)
    assert_close(chunked["final_state"], recurrent["final_state"], 1e-5)
    assert np.any(chunked["output"][:32] != recurrent["output"][:32])
    # Sequence 1 is too short for a chunk.
    assert_same_bits(chunked["output"][40:47], recurrent["output"][40:47])


@ENTRY_POINTS
def test_sessions_of_one_process_keep_their_engines(provider):
    node = PROBLEM.node()
    engines = ["chunked", "auto", "chunked", "recurrent"]
    running = [session(node.model(), provider=provider, engine=engine) for engine in engines]
    first, auto, second, recurrent = (
        run_bound(one, node.feeds(), node.poisoned())["output"] for one in running
    )
    assert_same_bits(first, second)
    assert_same_bits(auto, recurrent)
    assert np.any(first != auto)


@pytest.mark.parametrize(
    "engine, fragment",
    [
        ("fast", 'is "fast", expected one of auto, recurrent, chunked'),
        ("", 'is "", expected one of auto, recurrent, chunked'),
        ("deferred", 'is "deferred", which does not exist yet, expected one of'),
    ],
)
@pytest.mark.parametrize("library", [LIBRARY, None], ids=["operators", "provider"])
def test_other_engines_are_refused_at_once(library, engine, fragment, capfd):
    if library is None and not HAS_SCHEMAS:
        pytest.skip("ONNX Runtime before 1.30 does not know the operator without the library")
    model = PROBLEM.node().model()
    with pytest.raises(Exception) as caught:
        session(model, library=library, provider=library is None, engine=engine)
    # Before 1.32 Python prints a provider's error, and tries again without the provider.
    text = str(caught.value) + capfd.readouterr().out
    assert f"deltaworks.engine {fragment}" in text, text
