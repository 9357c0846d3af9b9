"""Operator graphs survive their files, and broken files are refused."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import binary, builds, from_regex, integers, lists

from formats.chakra import read_chakra
from simulators.collectives.traces.operators import Operator, TraceLayer, operators_of, read_graph
from simulators.collectives.traces.step import nodes_of
from simulators.core.errors import UserError
from tests.collectives.chakra_writer import write_chakra

STEP = (
    Operator(0, "forward", "compute", duration_ns=10_000),
    Operator(1, "gradient", "compute", (0,), duration_ns=20_000),
    Operator(300, "sum", "collective", (1,), collective="all_reduce", size_bytes=1 << 40),
    Operator(301, "to the next stage", "send", (0, 1), size_bytes=77, peer=3, tag=9),
    Operator(302, "from it", "recv", (301,), size_bytes=77, peer=3, tag=9),
)
AMONG_SOME = Operator(
    303, "pair", "collective", collective="all_gather", size_bytes=1, group=(0, 3)
)


def graph_text(*operators: Operator) -> str:
    entries = [asdict(o) for o in operators]
    return json.dumps({"schema": "sweeper-operator-graph", "version": 1, "operators": entries})


def test_written_graph_reads_back_equal(tmp_path: Path) -> None:
    (tmp_path / "step.json").write_text(graph_text(*STEP, AMONG_SOME))
    assert read_graph(tmp_path / "step.json") == (*STEP, AMONG_SOME)


def test_written_chakra_trace_reads_back_equal(tmp_path: Path) -> None:
    write_chakra(tmp_path / "step.0.et", STEP)
    assert read_chakra(tmp_path / "step.0.et") == STEP


@given(
    lists(
        builds(
            TraceLayer,
            from_regex("[a-z0-9_]{1,9}", fullmatch=True),
            *(integers(0, 10**6).map(lambda us: 1000 * us),) * 3,
            integers(0, 2**40),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_layer_step_survives_a_chakra_round_trip(
    tmp_path_factory: pytest.TempPathFactory, layers: list[TraceLayer]
) -> None:
    file = tmp_path_factory.getbasetemp() / "step.et"
    write_chakra(file, operators_of(layers))
    assert read_chakra(file) == operators_of(layers)


def test_hand_written_trace_is_read(tmp_path: Path) -> None:
    # Metadata, then node 5 "a" of type COMP_NODE that took 7 us and waits for nodes 1 and 2.
    node = bytes([0x08, 5, 0x12, 1, 0x61, 0x18, 4, 0x2A, 2, 1, 2, 0x38, 7])
    (tmp_path / "x.et").write_bytes(bytes([0, len(node)]) + node)
    assert read_chakra(tmp_path / "x.et") == (
        Operator(5, "a", "compute", (1, 2), duration_ns=7000),
    )


@given(binary(min_size=1, max_size=60))
def test_random_bytes_give_an_error_or_a_trace_but_no_crash(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.et"
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert all(isinstance(o, Operator) for o in read_chakra(path))


def entry(ident: object, kind: str) -> str:
    """Return the JSON of a graph with one operator; `kind` may hold more fields."""
    operator = f'{{"id": {json.dumps(ident)}, "name": "a", "kind": {kind}}}'
    return f'{{"schema": "sweeper-operator-graph", "version": 1, "operators": [{operator}]}}'


def test_malformed_trace_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    for content, said in (
        ("{", "cannot be read"),
        ("{}", "schema"),
        ('{"schema": "sweeper-operator-graph", "version": 9}', "version"),
        ('{"schema": "sweeper-operator-graph", "version": 1, "operators": [{}]}', "needs id"),
        ('{"schema": "sweeper-operator-graph", "version": 1, "operators": 3}', "a list"),
        (entry("x", '"compute"'), "id is 'x'"),
        (entry(1, "7"), "kind is 7"),
        (entry(1, '"compute", "after": 3'), "after is 3"),
        (entry(1, '"compute", "after": ["x"]'), r"after\[0\] is"),
        (entry(1, '"compute", "duration_ns": -1'), "duration_ns is -1; it must be at least 0"),
        (entry(1, '"compute", "durations": 1'), "did you mean 'duration_ns'"),
        (entry(1, '"compte"'), "did you mean 'compute'"),
        (entry(1, '"collective", "collective": "all_reduc"'), "did you mean 'all_reduce'"),
    ):
        file.write_text(content)
        with pytest.raises(UserError, match=said):
            read_graph(file)
    write_chakra(tmp_path / "cut.et", STEP)
    (tmp_path / "cut.et").write_bytes((tmp_path / "cut.et").read_bytes()[:-3])
    with pytest.raises(UserError, match="truncated"):
        read_chakra(tmp_path / "cut.et")
    with pytest.raises(UserError, match="does not exist"):
        nodes_of({0: (Operator(0, "a", "compute", (7,)),)}, lambda o, rank: 0)
    with pytest.raises(UserError, match="operator 3 occurs twice"):
        nodes_of({0: (Operator(3, "a", "compute"),) * 2}, lambda o, rank: 0)
