"""The simulator of multi-core chips: axes, searches and bounds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from simulators.core.errors import UserError
from simulators.dataflow.network import rows_of
from simulators.multicore.nodes import CHANNELS, ROWS
from simulators.multicore.simulator import (
    SIMULATOR,
    MulticoreMetrics,
    MulticorePoint,
    allocator_of,
    simulate,
)

FILES = Path(__file__).parent / "files"


def point(**changes: Any) -> MulticorePoint:
    """Return a small transformer on two cores."""
    plain = MulticorePoint(
        cores="2*two_level",
        network="bert_base_128",
        tiles=8,
        evaluations=10,
        allocations=10,
        memory_bytes_per_s=1e10,
    )
    return dataclasses.replace(plain, **changes)


def answer(**changes: Any) -> MulticoreMetrics:
    """Return the metrics of the point with changes."""
    return simulate(point(**changes))


def test_a_search_is_no_worse_than_a_fixed_allocation_and_no_better_than_the_bound() -> None:
    block = {"network": "llama7b_decode_block_1024", "goal": "cycles"}
    searched = answer(**block)
    for fixed in ("round_robin", "rows", "channels"):
        assert searched.latency_s <= answer(**block, allocation=fixed).latency_s * (1 + 1e-9)
    assert 0.0 <= searched.gap < 1.0
    assert searched.latency_bound_s <= searched.latency_s
    assert searched.allocations_tried == 10


def test_more_bandwidth_of_dram_or_noc_takes_no_longer_with_a_fixed_allocation() -> None:
    slow = answer(allocation="round_robin", memory_bytes_per_s=2e9, noc_bytes_per_s=1e9)
    dram = answer(allocation="round_robin", memory_bytes_per_s=2e11, noc_bytes_per_s=1e9)
    noc = answer(allocation="round_robin", memory_bytes_per_s=2e9, noc_bytes_per_s=1e11)
    assert dram.latency_s < slow.latency_s
    assert noc.latency_s <= slow.latency_s
    assert slow.noc_bytes == noc.noc_bytes > 0


def test_energy_on_links_is_bytes_times_energy_per_bit() -> None:
    free = answer(allocation="round_robin")
    paid = answer(allocation="round_robin", noc_pj_per_bit=2.0)
    assert paid.energy_j - free.energy_j == pytest.approx(free.noc_bytes * 8 * 2e-12, rel=1e-6)


def test_places_of_a_layer_are_cores_rows_and_channels() -> None:
    nodes = allocator_of(point()).nodes
    assert nodes.places(0) == (0, 1, ROWS, CHANNELS)
    assert rows_of(nodes.layers[0]) == 128
    single = allocator_of(point(cores="two_level")).nodes
    assert single.places(0) == (0,)


def test_explain_names_the_core_of_every_layer_and_adds_up_to_the_energy() -> None:
    given = point(allocation="round_robin", noc_pj_per_bit=1.0)
    lines = SIMULATOR.explain(dataclasses.asdict(given))
    layers = [line for line in lines if line.phase != "transfers"]
    assert {line.name for line in layers} == {"core 0, two_level", "core 1, two_level"}
    assert len(layers) == len(allocator_of(given).nodes.layers)
    assert {line.name for line in lines if line.phase == "transfers"} == {"link 0, 1", "DRAM port"}
    assert sum(line.energy_j for line in lines) == pytest.approx(simulate(given).energy_j)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cores": ""}, "write them as in"),
        ({"cores": "0*two_level"}, "write them as in"),
        ({"cores": "65*two_level"}, "1 to 64 cores"),
        ({"cores": "tpu_like + two_level"}, "words of all cores"),
        ({"cores": "2*nvdla_256"}, "no shared buffer for inputs and outputs"),
        ({"allocation": "0,1"}, "a place for each of"),
        ({"allocation": ",".join(["7"] * 96)}, "not one of its places"),
        ({"cores": str(FILES / "tpu_like_quad_core.yaml"), "noc": "mesh"}, "has no effect"),
    ],
)
def test_designs_that_cannot_run_are_refused(changes: dict[str, Any], said: str) -> None:
    if "7" in changes.get("allocation", ""):
        layers = len(allocator_of(point()).nodes.layers)
        changes = {"allocation": ",".join(["7"] * layers)}
    with pytest.raises(UserError, match=said):
        answer(**changes)
