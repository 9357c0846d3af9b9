"""One interface for three fidelities, and what it says to nonsense."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulators.collectives.simulator import SIMULATOR, CollectivePoint
from simulators.core.errors import UserError


def evaluate(**given: Any) -> dict[str, list[Any]]:
    rows = max(len(v) if isinstance(v, list) else 1 for v in given.values())
    given = {"collective": "all_reduce", "size_bytes": 1 << 20} | given
    columns = {}
    for f in fields(CollectivePoint):
        value = given.get(f.name, f.default)
        columns[f.name] = value if isinstance(value, list) else [value] * rows
    answer: dict[str, list[Any]] = SIMULATOR.evaluate(
        pa.RecordBatch.from_pydict(columns)
    ).to_pydict()
    return answer


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    fidelities = ["analytic", "event", "measured", "analytic"]
    together = evaluate(fidelity=fidelities, topology=["ring:8", "switch:4", "switch:8", "full:6"])
    alone = evaluate(fidelity="event", topology="switch:4")
    assert together["time_s"][1] == alone["time_s"][0]
    assert together["algbw_bytes_per_s"][1] == alone["algbw_bytes_per_s"][0]


def test_an_all_gather_is_sized_by_what_a_rank_has_in_the_end() -> None:
    answer = evaluate(
        collective="all_gather", size_bytes=8 << 20, algorithm="ring", fidelity="event"
    )
    assert answer["time_s"] == [44_058e-9]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"algorithm": "halving_doubling", "topology": "switch:6"}, "no_such_algorithm"),
        ({"algorithm": "halving_doubling", "topology": "switch:6", "fidelity": "event"}, "no_such"),
        ({"algorithm": "in_network", "topology": "ring:8", "fidelity": "event"}, "no_such_alg"),
        ({"size_bytes": 3}, "size_below_ranks"),
        ({"topology": "ring:1"}, "one_rank"),
    ],
)
def test_what_cannot_exist_is_a_row_with_a_reason(given: dict[str, Any], reason: str) -> None:
    answer = evaluate(**({"fidelity": "analytic"} | given))
    assert answer["status"] == ["infeasible"]
    assert answer["reason"][0].startswith(reason)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"link_bytes_per_s": 0.0}, "disconnected"),
        ({"latency_s": -1.0}, "latency"),
        ({"topology": "switch:0"}, "at least 1"),
        ({"topology": "swich:8"}, "did you mean 'switch'"),
        ({"topology": "switch:eight"}, "block:ranks"),
        ({"topology": "fat_tree:10:4"}, "do not fill"),
        ({"topology": "hgx_h10"}, "did you mean 'hgx_h100'"),
        ({"topology": "torus:2x2x2x2x2"}, "dimensions"),
        ({"algorithm": "rign"}, "did you mean 'ring'"),
        ({"algorithm": "ring,ring"}, "names 2 dimensions"),
        ({"algorithm": "ring:2"}, "only direct"),
        ({"collective": "all_reduec"}, "did you mean 'all_reduce'"),
        ({"fidelity": "exact"}, "unknown fidelity"),
        ({"splits": 0}, "splits is 0"),
        ({"local_memory_bytes_per_s": 0.0}, "must be positive"),
        ({"endpoint_delay_s": -1e-9}, "endpoint_delay_s"),
        ({"library": "ncll"}, "did you mean 'nccl'"),
    ],
)
def test_nonsense_is_refused_in_the_users_words(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        evaluate(**given)


def test_a_topology_of_ones_own_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[dimension]]\nblock = "switch"\nranks = 8\nbytes_per_s = 429496729600.0\n'
        "latency_s = 936.25e-9\nenergy_j_per_bit = 1e-12\n"
    )
    answer = evaluate(topology=str(file), algorithm="ring", fidelity="event")
    assert answer["time_s"] == [57_426e-9]
    # 8 ranks send 1.75 MiB each over two links.
    assert answer["energy_j"][0] == pytest.approx(8 * 1.75 * 2**20 * 8 * 2 * 1e-12)
    assert SIMULATOR.reads("topology", str(file)) == (file,)


def test_measured_times_have_intervals_and_flags() -> None:
    answer = evaluate(topology=["switch:8", "switch:16", "h100_rails_32"])
    assert answer["calibrated"] == [True, True, False]
    assert answer["extrapolated"] == [False, True, True]
    for lo, mid, hi in zip(*(answer[f"time_s{x}"] for x in ("_lo", "", "_hi")), strict=True):
        assert lo < mid < hi


def test_int8_misses_the_switches_reduction() -> None:
    sizes = [1 << 28, 1 << 28]
    half, whole = evaluate(size_bytes=sizes, dtype=["fp16", "int8"])["time_s"]
    assert whole > 1.2 * half


def test_a_frameworks_own_all_reduce_is_faster_when_small() -> None:
    own, nccl = evaluate(size_bytes=8192, library=["trtllm", "nccl"], dtype="bf16")["time_s"]
    assert own < 0.5 * nccl


def test_more_ranks_than_measured_still_take_longer_when_small() -> None:
    ranks = [f"switch:{n}" for n in (2, 3, 4, 6, 8, 16, 32)]
    times = evaluate(topology=ranks, size_bytes=4096)["time_s"]
    assert np.all(np.diff(times) > 0.0)
