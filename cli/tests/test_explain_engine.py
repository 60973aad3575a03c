"""Which engine `explain` says would run."""

import json

import pytest
from test_command_line import MODEL, run, wrong


@pytest.mark.parametrize("by_environment", [False, True])
def test_the_engine_that_would_run(by_environment):
    def engines(*arguments):
        environment = {"DELTAWORKS_ENGINE": "chunked"} if by_environment else {}
        choice = [] if by_environment else ["--engine", "chunked"]
        ran = run("explain", MODEL, "--json", *choice, *arguments, environment=environment)
        nodes = json.loads(ran.stdout)["nodes"]
        return {
            (node["engine"], node.get("chunked_from"))
            for node in nodes
            if node["operator"].endswith("GatedDeltaNet")
        }

    assert engines() == engines("--tokens", 15) == {("recurrent", 16)}
    assert engines("--tokens", 16) == {("chunked", 16)}
    text = run("explain", MODEL, "--engine", "chunked").stdout
    assert b"open: sequences, tokens; chunked from 16 tokens on" in text


def test_a_wrong_engine():
    assert "--engine" in wrong("explain", MODEL, "--engine", "fast")
    ran = run("explain", MODEL, environment={"DELTAWORKS_ENGINE": "fast"})
    assert b'GatedDeltaNet: DELTAWORKS_ENGINE is "fast", expected one of' in ran.stdout
