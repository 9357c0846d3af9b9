"""Overlap, worked out on paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from simulators.collectives.traces.operators import operators_of, read_layers
from simulators.collectives.traces.step import nodes_of
from simulators.collectives.traces.timeline import (
    COMMUNICATION,
    TraceNode,
    run_graph,
    timeline,
)
from simulators.core.errors import UserError

LAYERS = "layer,forward_us,input_grad_us,weight_grad_us,weight_grad_all_reduce_bytes\n"


@given(lists(integers(0, 50), min_size=1, max_size=20), integers(0, 40))
def test_exposed_communication_is_at_most_the_total(times: list[int], talk: int) -> None:
    nodes: list[TraceNode] = []
    for t in times:
        after = (len(nodes) - 2,) if nodes else ()
        nodes += [TraceNode("c", t, after), TraceNode("a", talk, (len(nodes),), COMMUNICATION)]
    step = timeline(nodes)
    assert 0 <= step.comm_exposed_ns <= step.comm_total_ns == talk * len(times)
    assert step.compute_total_ns == sum(times)


def test_ready_node_with_the_lowest_id_runs_first() -> None:
    step = timeline([TraceNode("a", 5), TraceNode("b", 5), TraceNode("c", 5, (1,))])
    assert step.start_ns.tolist() == [0, 5, 10]


def test_ranks_use_separate_devices() -> None:
    step = timeline([TraceNode("a", 5, rank=0), TraceNode("b", 7, rank=1)])
    assert step.finish_ns == 7


def test_cyclic_dependencies_are_refused() -> None:
    with pytest.raises(UserError, match="wait for each other"):
        timeline([TraceNode("a", 1, (1,)), TraceNode("b", 1, (0,))])
    with pytest.raises(UserError, match="there are 1 nodes"):
        timeline([TraceNode("a", 1, (4,))])


def test_compiled_graph_replay_matches_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [TraceNode(str(i), 3 + i % 4, (i // 2,) if i else (), i % 2) for i in range(40)]
    compiled = timeline(nodes)
    monkeypatch.setattr("simulators.collectives.traces.timeline.run_graph", run_graph.py_func)
    assert timeline(nodes).end_ns.tolist() == compiled.end_ns.tolist()


def test_weight_gradient_all_reduce_overlaps_earlier_layers(tmp_path: Path) -> None:
    file = tmp_path / "two.csv"
    file.write_text(LAYERS + "first,10,10,10,1000\nsecond,20,20,20,2000\n")
    program = operators_of(read_layers(file))
    step = timeline(nodes_of({0: program}, lambda o, rank: 10 * o.size_bytes))
    # forward 30, second's gradients 20 + 20, first's weight gradient 10: 80 us of compute. The
    # second's all-reduce (20 us) hides behind them, the first's (10 us) does not.
    assert (step.compute_total_ns, step.comm_total_ns) == (80_000, 30_000)
    assert step.comm_exposed_ns == 10_000


@pytest.mark.parametrize("content", ["", "DATA\n1\n", LAYERS + "a,1,2,3\n", LAYERS + "a,b,c,d,e\n"])
def test_malformed_layer_list_names_the_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(content)
    with pytest.raises(UserError, match=r"bad\.csv"):
        read_layers(file)
