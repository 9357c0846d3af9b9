"""Steps of many operators as points of the simulator, worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from simulators.collectives.simulator import SIMULATOR
from simulators.collectives.topologies.plan import load_topology, plan_among
from simulators.collectives.traces.operators import Operator
from simulators.core.errors import UnknownNameError, UserError
from sweeper.space.design_space import space_of
from sweeper.store.keys import define, keys
from tests.collectives.chakra_writer import write_chakra
from tests.collectives.test_simulator import evaluate

PAIR = {
    "topology": "switch:2",
    "algorithm": "ring",
    "link_bytes_per_s": 1e9,
    "latency_s": 50e-9,
    "fidelity": "analytic",
    "splits": 1,
    "local_memory_bytes_per_s": 1e18,
}
"""A send of m bytes takes 10 + 100 + m + 10 ns."""


def compute(ident: int, ns: int, *after: int) -> Operator:
    return Operator(ident, "kernel", "compute", after, duration_ns=ns)


def summed(ident: int, size: int, *after: int, group: tuple[int, ...] = ()) -> Operator:
    kind = {"collective": "all_reduce", "size_bytes": size}
    return Operator(ident, "sum", "collective", after, group=group, **kind)  # type: ignore[arg-type]


def graph(file: Path, operators: Sequence[Operator]) -> str:
    entries = [asdict(o) for o in operators]
    content = {"schema": "sweeper-operator-graph", "version": 1, "operators": entries}
    file.write_text(json.dumps(content))
    return str(file)


def answer(trace: str, **given: Any) -> dict[str, Any]:
    found = evaluate(**PAIR | {"trace": trace} | given)
    return {name: column[0] for name, column in found.items()}


def test_communication_not_hidden_by_compute_is_exposed(tmp_path: Path) -> None:
    # A sum of 1,000 bytes by two ranks takes 10 + 2 * (100 + 500 + 10) = 1,230. The first hides
    # behind 5,000 of compute, the second does not.
    program = (compute(0, 3_000), summed(1, 1_000, 0), compute(2, 5_000, 0), summed(3, 1_000, 2))
    row = answer(graph(tmp_path / "step.json", program))
    assert row["status"] == "ok"
    assert (row["time_s"], row["compute_s"]) == (9_230e-9, 8_000e-9)
    assert (row["comm_total_s"], row["comm_exposed_s"]) == (2_460e-9, 1_230e-9)
    assert row["time_s_lo"] == row["time_s_hi"] == row["time_s"]
    # Each rank sends half of each buffer twice, over two links.
    assert (row["messages"], row["wire_bytes"], row["ranks"]) == (8, 2_000, 2)
    assert row["busbw_bytes_per_s"] is row["utilisation"] is None


def test_pipeline_of_chakra_traces_sends_between_stages(tmp_path: Path) -> None:
    send = Operator(1, "out", "send", (0,), size_bytes=380, peer=1, tag=7)
    recv = Operator(0, "in", "recv", size_bytes=380, peer=0, tag=7)
    write_chakra(tmp_path / "stage.0.et", (compute(0, 2_000), send))
    write_chakra(tmp_path / "stage.1.et", (recv, compute(1, 3_000, 0)))
    row = answer(str(tmp_path))
    assert row["time_s"] == pytest.approx((2_000 + 500 + 3_000) * 1e-9)
    assert row["comm_exposed_s"] == pytest.approx((500 + 2_000) * 1e-9)  # and the other's compute
    assert row["messages"] == 1


def test_layer_list_becomes_one_step_per_rank(tmp_path: Path) -> None:
    file = tmp_path / "layers.csv"
    file.write_text(
        "layer,forward_us,input_grad_us,weight_grad_us,weight_grad_all_reduce_bytes\n"
        "first,10,10,10,1000\nsecond,20,20,20,1000\n"
    )
    row = answer(str(file))
    assert (row["compute_s"], row["comm_total_s"]) == (80e-6, 2_460e-9)
    assert row["comm_exposed_s"] == 1_230e-9


def test_lifo_order_runs_the_last_collective_first(tmp_path: Path) -> None:
    program = (compute(0, 10), summed(1, 1_000, 0), summed(2, 1_000, 0), compute(3, 90, 2))
    file = graph(tmp_path / "step.json", program)
    assert answer(file)["time_s"] == (10 + 2 * 1_230 + 90) * 1e-9
    assert answer(file, issue="lifo")["time_s"] == (10 + 2 * 1_230) * 1e-9


def test_aligned_groups_use_separate_links(tmp_path: Path) -> None:
    # Two by two ranks, ten times slower between pairs: sums inside a pair, then across.
    network = tmp_path / "two.toml"
    network.write_text(
        '[[dimension]]\nblock = "switch"\nranks = 2\nbytes_per_s = 1e9\nlatency_s = 50e-9\n'
        '[[dimension]]\nblock = "switch"\nranks = 2\nbytes_per_s = 1e8\nlatency_s = 50e-9\n'
    )
    given = {"topology": str(network), "link_bytes_per_s": None, "latency_s": None}
    groups = {0: ((0, 1), (0, 2)), 1: ((0, 1), (1, 3)), 2: ((2, 3), (0, 2)), 3: ((2, 3), (1, 3))}
    for rank, (inner, outer) in groups.items():
        program = summed(0, 1_000, group=inner), summed(1, 1_000, 0, group=outer)
        graph(tmp_path / f"step.{rank}.json", program)
    wanted_s = (1_230 + 10 + 2 * (100 + 5_000 + 10)) * 1e-9
    assert answer(str(tmp_path), **given)["time_s"] == pytest.approx(wanted_s)
    # All ranks run the program of rank 0, in groups of their own.
    alone = graph(
        tmp_path / "all.json", (summed(0, 1_000, group=(0, 1)), summed(1, 1_000, 0, group=(0, 2)))
    )
    row = answer(alone, **given)
    assert row["time_s"] == pytest.approx(wanted_s)
    assert row["messages"] == 2 * 2 * 4


def test_scattered_groups_share_the_slowest_link() -> None:
    plan = plan_among((0, 1, 2), load_topology("ring:2,switch:2"), "ring,direct")
    assert [d.block for d in plan.topology.dimensions] == ["ring"]
    assert plan.ranks == 3


def test_measured_step_has_an_interval(tmp_path: Path) -> None:
    file = graph(tmp_path / "step.json", (summed(0, 1 << 20), compute(1, 1_000, 0)))
    row = answer(file, topology="switch:8", fidelity="measured")
    assert row["time_s_lo"] < row["time_s"] < row["time_s_hi"]
    alone = evaluate(topology="switch:8", size_bytes=1 << 20)
    assert row["time_s"] == pytest.approx(alone["time_s"][0] + 1e-6, abs=1e-9)
    assert row["measured_share"] == 1.0


def test_collective_row_is_unchanged_in_a_batch_with_a_step(tmp_path: Path) -> None:
    file = graph(tmp_path / "step.json", (summed(0, 1_000),))
    both = evaluate(**PAIR | {"trace": ["", file], "size_bytes": 1_000})
    assert both["time_s"] == evaluate(**PAIR | {"size_bytes": 1_000})["time_s"] * 2
    assert both["comm_exposed_s"] == [None, both["time_s"][1]]


def test_step_without_communication_equals_compute_time(tmp_path: Path) -> None:
    row = answer(graph(tmp_path / "step.json", (compute(0, 500), compute(1, 700))))
    assert (row["time_s"], row["comm_exposed_s"], row["messages"]) == (1_200e-9, 0, 0)


def test_impossible_step_is_a_row_with_a_reason(tmp_path: Path) -> None:
    for rank in range(2):
        graph(tmp_path / f"step.{rank}.json", (summed(0, 1_000),))
    assert answer(str(tmp_path), topology="switch:4")["reason"].startswith("other_ranks")
    row = answer(str(tmp_path), topology="ring:2", algorithm="in_network")
    assert "all_reduce of 1000 bytes: no_such_algorithm" in row["reason"]


def test_invalid_input_is_refused_with_the_field_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown trace 'step'"):
        answer("step")
    with pytest.raises(UserError, match="no such file"):
        answer("./step.json")
    with pytest.raises(UserError, match="a file of each rank"):
        answer(str(tmp_path))
    file = graph(tmp_path / "step.json", (summed(0, 8, group=(0, 5)),))
    with pytest.raises(UserError, match=r"is of ranks \[0, 5\]; there are 2"):
        answer(file)


def test_explanation_of_a_step_sums_to_the_step_time(tmp_path: Path) -> None:
    file = graph(tmp_path / "step.json", (compute(0, 500), summed(1, 1_000, 0), summed(2, 64, 0)))
    point = PAIR | {"trace": file}
    lines, row = SIMULATOR.explain(point), answer(file)
    assert [line.name for line in lines] == [
        "compute",
        "all_reduce of 1,000 bytes, 2 ranks",
        "all_reduce of 64 bytes, 2 ranks",
    ]
    assert sum(line.time_s for line in lines) == pytest.approx(row["time_s"])
    assert sum(line.moved_bytes for line in lines) == row["wire_bytes"] * row["ranks"]


def test_edited_trace_is_a_different_point(tmp_path: Path) -> None:
    file = graph(tmp_path / "step.json", (summed(0, 1_000),))
    space = space_of({"simulator": "collectives", "axes": {"trace": file}})
    before = keys(define(space), space.points([0])).to_list()  # type: ignore[arg-type]
    graph(tmp_path / "step.json", (summed(0, 2_000),))
    assert keys(define(space), space.points([0])).to_list() != before  # type: ignore[arg-type]


def test_step_depends_on_trace_and_network_files(tmp_path: Path) -> None:
    file = graph(tmp_path / "step.json", (summed(0, 1_000), compute(1, 3_000, 0)))
    row = answer(file)
    assert row["measured_share"] == pytest.approx(3e-6 / row["time_s"])
    assert row["datasheet_share"] == pytest.approx(row["comm_exposed_s"] / row["time_s"])


def test_recorded_messages_stand_beside_predicted_ones(tmp_path: Path) -> None:
    plain = (compute(0, 3_000), summed(1, 1_000, 0))
    timed = (plain[0], replace(plain[1], duration_ns=2_000))
    assert answer(graph(tmp_path / "plain.json", plain))["comm_recorded_s"] is None
    row = answer(graph(tmp_path / "timed.json", timed))
    assert row["comm_recorded_s"] == pytest.approx(2_000e-9)
    assert row["comm_total_s"] == pytest.approx(1_230e-9)
