"""Operator graphs survive their files, and broken files are refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import binary

from simulators.collectives.chakra import read_chakra, write_chakra
from simulators.collectives.graph import graph_of, timeline
from simulators.collectives.trace import Operator, nodes_of, read_graph, write_graph
from simulators.core.errors import UserError

STEP = (
    Operator(0, "forward", "compute", duration_ns=10_000),
    Operator(1, "gradient", "compute", (0,), duration_ns=20_000),
    Operator(300, "sum", "collective", (1,), collective="all_reduce", size_bytes=1 << 40),
    Operator(301, "to the next stage", "send", (0, 1), size_bytes=77, peer=3, tag=9),
    Operator(302, "from it", "recv", (301,), size_bytes=77, peer=3, tag=9),
)


def test_a_graph_reads_back_as_it_was_written(tmp_path: Path) -> None:
    write_graph(tmp_path / "step.json", STEP)
    assert read_graph(tmp_path / "step.json") == STEP


def test_a_chakra_trace_reads_back_as_it_was_written(tmp_path: Path) -> None:
    write_chakra(tmp_path / "step.0.et", STEP)
    assert read_chakra(tmp_path / "step.0.et") == STEP


def test_a_trace_written_by_hand_is_read(tmp_path: Path) -> None:
    # Metadata, then node 5 "a" of type COMP_NODE that took 7 us and waits for nodes 1 and 2.
    node = bytes([0x08, 5, 0x12, 1, 0x61, 0x18, 4, 0x2A, 2, 1, 2, 0x38, 7])
    (tmp_path / "x.et").write_bytes(bytes([0, len(node)]) + node)
    assert read_chakra(tmp_path / "x.et") == (
        Operator(5, "a", "compute", (1, 2), duration_ns=7000),
    )


def test_operators_run_as_a_graph() -> None:
    step = timeline(graph_of(nodes_of(STEP, lambda operator: 1_000)))
    assert (step.finish_ns, step.comm_total_ns) == (33_000, 3_000)


@given(binary(min_size=1, max_size=60))
def test_noise_is_an_error_or_a_trace_but_no_crash(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.et"
    path.write_bytes(content)
    with contextlib.suppress(UserError):
        assert all(isinstance(o, Operator) for o in read_chakra(path))


def test_malformed_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    for content, said in (
        ("{", "cannot be read"),
        ("{}", "schema"),
        ('{"schema": "sweeper-operator-graph", "version": 9}', "version"),
        ('{"schema": "sweeper-operator-graph", "version": 1, "operators": [{}]}', "needs id"),
    ):
        file.write_text(content)
        with pytest.raises(UserError, match=said):
            read_graph(file)
    write_chakra(tmp_path / "cut.et", STEP)
    (tmp_path / "cut.et").write_bytes((tmp_path / "cut.et").read_bytes()[:-3])
    with pytest.raises(UserError, match="cut off"):
        read_chakra(tmp_path / "cut.et")
    with pytest.raises(UserError, match="not there"):
        nodes_of((Operator(0, "a", "compute", (7,)),), lambda o: 0)
