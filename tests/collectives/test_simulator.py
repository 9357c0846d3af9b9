"""The collectives simulator at three fidelities, and errors for invalid input."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.collectives.point import CollectivePoint
from simulators.collectives.price import collective_time
from simulators.collectives.simulator import SIMULATOR
from simulators.core.errors import Infeasible, UserError


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


def test_row_is_equal_alone_and_in_a_batch() -> None:
    fidelities = ["analytic", "event", "measured", "analytic"]
    together = evaluate(fidelity=fidelities, topology=["ring:8", "switch:4", "switch:8", "full:6"])
    alone = evaluate(fidelity="event", topology="switch:4")
    assert together["time_s"][1] == alone["time_s"][0]
    assert together["algbw_bytes_per_s"][1] == alone["algbw_bytes_per_s"][0]


def test_all_gather_size_is_the_gathered_buffer() -> None:
    answer = evaluate(
        collective="all_gather", size_bytes=8 << 20, algorithm="ring", fidelity="event"
    )
    assert answer["time_s"] == [44_058e-9]


def test_mutually_waiting_chunks_are_a_deadlock() -> None:
    given = {
        "topology": "switch:2,switch:2,full:2",
        "splits": 8,
        "active_chunks": 1,
        "link_bytes_per_s": 1e10,
        "latency_s": 50e-9,
    }
    answer = evaluate(
        algorithm="double_binary_tree",
        fidelity=["event", "event", "analytic"],
        queues=[1, 2, 1],
        **given,
    )
    assert answer["status"] == ["infeasible", "ok", "ok"]
    assert answer["reason"][0].startswith("deadlock: ")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"algorithm": "halving_doubling", "topology": "switch:6"}, "no_such_algorithm"),
        ({"algorithm": "halving_doubling", "topology": "switch:6", "fidelity": "event"}, "no_such"),
        ({"algorithm": "in_network", "topology": "ring:8", "fidelity": "event"}, "no_such_alg"),
        ({"size_bytes": 3}, "size_below_ranks"),
        ({"size_bytes": 0}, "size_below_ranks"),
        ({"algorithm": "double_binary_tree", "topology": "full:6"}, "no_such_algorithm"),
        ({"topology": "ring:1"}, "one_rank"),
    ],
)
def test_impossible_collective_is_a_row_with_a_reason(given: dict[str, Any], reason: str) -> None:
    answer = evaluate(**({"fidelity": "analytic"} | given))
    assert answer["status"] == ["infeasible"]
    assert answer["reason"][0].startswith(reason)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"link_bytes_per_s": 0.0}, "link_bytes_per_s is 0"),
        ({"latency_s": -1.0}, "latency_s is -1"),
        ({"latency_s": float("nan")}, "latency_s is nan"),
        ({"size_bytes": 1 << 50}, "size_bytes is 1"),
        ({"topology": "switch:0"}, "at least 1"),
        ({"topology": "swich:8"}, "did you mean 'switch'"),
        ({"topology": "switch:eight"}, "block:ranks"),
        ({"topology": "fat_tree:10:4"}, "do not fill"),
        ({"topology": "hgx_h10"}, "did you mean 'hgx_h100'"),
        ({"topology": "torus:2x2x2x2x2"}, "dimensions"),
        ({"topology": "mesh:4x4"}, "grids without wrap-around links are not modelled"),
        ({"algorithm": "rign"}, "did you mean 'ring'"),
        ({"algorithm": "ring,ring"}, "names 2 dimensions"),
        ({"algorithm": "ring:2"}, "only direct"),
        ({"collective": "all_reduec"}, "did you mean 'all_reduce'"),
        ({"fidelity": "exact"}, "unknown fidelity"),
        ({"splits": 0}, "splits is 0"),
        ({"local_memory_bytes_per_s": 0.0}, "local_memory_bytes_per_s is 0"),
        ({"endpoint_delay_s": -1e-9}, "endpoint_delay_s"),
        ({"library": "ncll"}, "did you mean 'nccl'"),
        ({"gpu": "h100_smx"}, "did you mean 'h100_sxm'"),
        ({"order": "base_line"}, "did you mean 'baseline'"),
        ({"queues": 0}, "queues is 0"),
        ({"active_chunks": -1}, "active_chunks is -1"),
        ({"topology": "switch:2000000"}, "up to 1,048,576"),
        ({"topology": "fat_tree:8:4:0"}, "oversubscription 0"),
        ({"topology": "./none.toml"}, "no such file"),
        ({"algorithm": "direct:0"}, "only direct takes a window"),
    ],
)
def test_invalid_input_is_refused_with_the_field_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        evaluate(**given)


def test_one_byte_more_costs_no_other_chunk() -> None:
    less, more = evaluate(size_bytes=[45_239_029, 45_239_040], fidelity="analytic")["time_s"]
    assert less == more


def test_no_collective_is_faster_than_its_links() -> None:
    given = {"size_bytes": 1 << 30, "algorithm": "direct", "fidelity": "analytic"}
    answer = evaluate(topology="switch:512", link_bytes_per_s=1e11, **given)
    assert answer["busbw_bytes_per_s"][0] <= 1e11
    assert answer["utilisation"] == [pytest.approx(1.0)]


def test_broadcast_without_contention_is_at_most_as_slow_as_its_events() -> None:
    given = {"collective": "broadcast", "algorithm": "ring", "topology": "switch:8"}
    alone, events = evaluate(fidelity=["analytic", "event"], splits=16, **given)["time_s"]
    assert alone <= events


def test_intervals_over_nodes_are_at_least_as_wide_as_of_a_measured_node() -> None:
    topologies = ["switch:8", *(f"switch:8,switch:{n}" for n in (2, 64))]
    answer = evaluate(topology=topologies, size_bytes=1 << 28, algorithm="ring")
    ratio = np.array(answer["time_s_hi"]) / np.array(answer["time_s"])
    assert ratio[1:].min() >= ratio[0]


def test_traffic_of_an_unsupported_algorithm_is_null() -> None:
    answer = evaluate(collective="all_to_all", algorithm="halving_doubling", topology="switch:8")
    assert answer["status"] == ["ok"]
    assert answer["wire_bytes"] == answer["messages"] == answer["utilisation"] == [None]


def test_flat_ring_over_measured_nodes_goes_around_all_nodes() -> None:
    given = {"topology": "switch:8,switch:4", "size_bytes": 1 << 26}
    ring, flat = (evaluate(algorithm=name, **given)["time_s"] for name in ("ring", "flat:ring"))
    assert flat == ring


def test_custom_topology_is_read_from_a_file(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("fidelity", ["event", "flow"])
def test_link_busy_time_is_bytes_over_bandwidth(fidelity: str) -> None:
    answer = evaluate(
        topology="ring:4,switch:2",
        algorithm="ring",
        fidelity=fidelity,
        size_bytes=64 << 20,
        link_bytes_per_s=1e11,
        latency_s=1e-6,
    )
    # A reduce-scatter and an all-gather among four move 3/4 of the buffer each, an all-reduce
    # among two a quarter of it, both ways.
    inner, outer = 2 * 0.75 * 64 * 2**20 / 1e11, 0.25 * 64 * 2**20 / 1e11
    time_s = answer["time_s"][0]
    assert answer["utilisation_1"][0] == pytest.approx(inner / time_s, rel=1e-4)
    assert answer["utilisation_2"][0] == pytest.approx(outer / time_s, rel=1e-4)
    assert answer["utilisation_3"] == answer["utilisation_4"] == [None]
    assert answer["utilisation"] == answer["utilisation_1"]


@pytest.mark.parametrize("splits", [1, 4, 16])
def test_chain_broadcast_takes_one_chunk_time_per_hop_and_later_chunk(splits: int) -> None:
    """Rank 7 has the first chunk after 7 hops, then one more chunk per chunk time."""
    size, rate = 1 << 30, 1e11
    given = {"collective": "broadcast", "algorithm": "ring", "topology": "ring:8"}
    given |= {"size_bytes": size, "link_bytes_per_s": rate, "latency_s": 0.0, "splits": splits}
    [taken_s] = evaluate(fidelity="analytic", **given)["time_s"]
    assert taken_s == pytest.approx((7 + splits - 1) * size / splits / rate, rel=1e-4)


@pytest.mark.parametrize("topology", ["ring:8", "full:8", "switch:8"])
@pytest.mark.parametrize("algorithm", ["ring", "direct", "halving_doubling"])
def test_no_broadcast_is_faster_than_the_link_of_its_root(topology: str, algorithm: str) -> None:
    size, rate = 1 << 30, 1e11
    given = {"collective": "broadcast", "algorithm": algorithm, "topology": topology}
    given |= {"size_bytes": size, "link_bytes_per_s": rate, "latency_s": 0.0, "splits": 16}
    [taken_s] = evaluate(fidelity="analytic", **given)["time_s"]
    assert taken_s >= size / rate


def test_broadcast_sends_one_buffer_per_receiver() -> None:
    for algorithm in ("ring", "direct", "halving_doubling"):
        answer = evaluate(
            collective="broadcast",
            algorithm=algorithm,
            fidelity="flow",
            splits=2,
            topology="switch:8",
        )
        assert answer["messages"] == [2 * 7]
        assert answer["wire_bytes"][0] == pytest.approx(7 / 8 * 2**20)


def test_trees_support_only_all_reduce() -> None:
    given = {"algorithm": "double_binary_tree", "topology": "switch:4,switch:2", "fidelity": "flow"}
    assert evaluate(**given)["status"] == evaluate(**given, order="baseline")["status"] == ["ok"]
    assert evaluate(**given | {"algorithm": "ring,double_binary_tree"})["status"] == ["ok"]
    assert "all_reduces alone" in evaluate(**given, collective="all_gather")["reason"][0]


def test_run_above_the_event_limit_is_a_row_with_a_reason() -> None:
    answer = evaluate(
        topology="fat_tree:4096:64:2", algorithm="direct", fidelity="flow", size_bytes=1 << 26
    )
    assert answer["status"] == ["infeasible"]
    assert answer["reason"][0].startswith("too_many_messages")


def test_measured_times_have_intervals_and_evidence_flags() -> None:
    answer = evaluate(topology=["switch:8", "switch:16", "h100_rails_32"])
    assert answer["measured_share"] == [1.0, 0.0, 0.0]
    assert answer["extrapolated_share"] == [0.0, 1.0, 0.0]
    assert answer["datasheet_share"] == [0.0, 0.0, 1.0]
    for lo, mid, hi in zip(*(answer[f"time_s{x}"] for x in ("_lo", "", "_hi")), strict=True):
        assert lo < mid < hi


def test_int8_cannot_use_in_network_reduction() -> None:
    sizes = [1 << 28, 1 << 28]
    half, whole = evaluate(size_bytes=sizes, dtype=["fp16", "int8"])["time_s"]
    assert whole > 1.2 * half


def test_custom_all_reduce_of_a_framework_is_faster_for_small_messages() -> None:
    own, nccl = evaluate(size_bytes=8192, library=["trtllm", "nccl"], dtype="bf16")["time_s"]
    assert own < 0.5 * nccl


def test_measured_all_to_all_over_nodes_is_that_of_nccl_on_the_links_of_the_topology() -> None:
    dgx, h100 = load_cluster("dgx_h100"), load_gpu("h100_sxm")
    sizes = [1 << 16, 1 << 24, 1 << 30]
    given = {"topology": "switch:8,switch:4", "link_bytes_per_s": dgx.inter.bytes_per_s}
    answer = evaluate(collective="all_to_all", size_bytes=sizes, **given)
    priced = collective_time("all_to_all", np.array(sizes, float), ranks=32, gpu=h100, cluster=dgx)
    assert answer["time_s"] == pytest.approx(priced.time_s.tolist())
    assert answer["fitted_share"] == [1.0] * 3
    [half] = evaluate(**given | {"collective": "all_to_all", "link_bytes_per_s": 25e9})["time_s"]
    [whole] = evaluate(**given | {"collective": "all_to_all"})["time_s"]
    assert half > whole


def test_dispatch_by_deepep_has_the_time_that_its_authors_publish() -> None:
    """DeepEP's README, low latency on H800: 128 tokens of 7,168 numbers, combined in 16 bits."""
    published_s = {"switch:8": 114e-6, "switch:8,switch:4": 273e-6, "switch:8,switch:16": 369e-6}
    answer = evaluate(
        collective="all_to_all",
        library="deepep_low_latency",
        gpu="h800",
        topology=list(published_s),
        link_bytes_per_s=50e9,
        size_bytes=128 * 8 * 7168 * 2,
    )
    assert answer["time_s"] == pytest.approx(list(published_s.values()), rel=0.15)


def test_exchange_in_an_nvlink_domain_sends_less_than_a_copy_for_each_expert() -> None:
    libraries = ["nvlink_all_to_all", "deepep_low_latency"]
    given = {"gpu": "gb200", "topology": "switch:4", "size_bytes": 1 << 30}
    once, copies = evaluate(collective="all_to_all", library=libraries, **given)["time_s"]
    assert once < copies


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"library": "deepep_low_latency"}, "not_measured: deepep_low_latency sends tokens"),
        (
            {
                "library": "deepep_high_throughput",
                "collective": "all_to_all",
                "topology": "switch:6",
            },
            "experts: 256 experts, 8 per token, on 6 ranks",
        ),
        (
            {"library": "deepep_low_latency", "collective": "all_to_all", "experts": 8, "top_k": 9},
            "experts: 8 experts, 9 per token",
        ),
        (
            {
                "library": "nvlink_all_to_all",
                "collective": "all_to_all",
                "topology": "switch:8,switch:2",
            },
            "several_domains: nvlink_all_to_all stays in one NVLink domain",
        ),
        (
            {"library": "oneccl", "collective": "all_to_all", "gpu": "b60"},
            "not_measured: oneccl on b60: no all_to_all",
        ),
        (
            {"library": "vllm", "collective": "all_to_all"},
            "not_measured: vllm on h100_sxm: no all_to_all",
        ),
    ],
)
def test_all_to_all_without_measurements_is_refused(given: dict[str, Any], reason: str) -> None:
    answer = evaluate(**given)
    assert answer["status"] == ["infeasible"]
    assert answer["reason"][0].startswith(reason)


def test_small_messages_beyond_measured_ranks_take_longer() -> None:
    ranks = [f"switch:{n}" for n in (2, 3, 4, 6, 8, 16, 32)]
    times = evaluate(topology=ranks, size_bytes=4096)["time_s"]
    assert np.all(np.diff(times) > 0.0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", r"has no \[\[dimension\]\]"),
        ("[[dimension]]\nblock = 'switch'\nranks = 8\n", "also needs bytes_per_s"),
        ("[[dimension]]\nblok = 'switch'\n", "did you mean 'block'"),
        (
            "[[dimension]]\nblock = 'swich'\nranks = 8\nbytes_per_s = 1.0\nlatency_s = 0.0\n",
            "did you mean 'switch'",
        ),
        (
            "[[dimension]]\nblock = 'switch'\nranks = 'x'\nbytes_per_s = 1.0\nlatency_s = 0.0\n",
            "ranks is 'x'",
        ),
        (
            "[[dimension]]\nblock = 'switch'\nranks = 8\nbytes_per_s = 'fast'\nlatency_s = 0.0\n",
            "bytes_per_s is 'fast'",
        ),
        ("[[dimension\n", "TOML"),
    ],
)
def test_malformed_topology_names_the_key(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(content)
    with pytest.raises(UserError, match=said):
        evaluate(topology=str(file))


@pytest.mark.parametrize("fidelity", ["analytic", "event", "flow", "measured"])
def test_explanation_rows_sum_to_the_total(fidelity: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    link = "bytes_per_s = 1e11\nlatency_s = 1e-6\nenergy_j_per_bit = 2e-12\n"
    file.write_text(
        f'[[dimension]]\nblock = "switch"\nranks = 4\n{link}'
        f'[[dimension]]\nblock = "ring"\nranks = 2\n{link}'
    )
    point = {
        "collective": "all_reduce",
        "size_bytes": 1 << 24,
        "topology": str(file),
        "algorithm": "ring",
        "fidelity": fidelity,
    }
    listed, row = SIMULATOR.explain(point), evaluate(**point)
    assert sum(c.time_s for c in listed) == pytest.approx(row["time_s"][0], rel=1e-12)
    assert sum(c.energy_j for c in listed) == pytest.approx(row["energy_j"][0], rel=1e-12)
    moved = sum(c.moved_bytes for c in listed)
    assert moved == pytest.approx(row["wire_bytes"][0] * row["ranks"][0], rel=1e-12)
    assert {c.devices for c in listed} == {row["ranks"][0]}
    if fidelity != "measured":
        names = [c.name.partition(",")[0] for c in listed]
        assert names == ["reduce_scatter", "all_reduce", "all_gather"]
    with pytest.raises(Infeasible, match="size_below_ranks"):
        SIMULATOR.explain(point | {"size_bytes": 2})


@pytest.mark.parametrize(
    ("collective", "topology", "least_s"),
    [
        # Each leaf of 4 ranks sends 12/16 of 4 buffers through one uplink of 50 GB/s.
        ("all_to_all", "fat_tree:16:4:4", 4 * (12 / 16) * (1 << 26) / 50e9),
        ("all_gather", "fat_tree:16:4:4", 4 * (12 / 16) * (1 << 26) / 50e9),
        ("all_to_all", "fat_tree:16:4:1", (15 / 16) * (1 << 26) / 50e9),
        # The root sends the buffer to each of the others through its own port.
        ("broadcast", "fat_tree:16:4:1", 15 * (1 << 26) / 50e9),
        ("broadcast", "switch:8", 7 * (1 << 26) / 50e9),
    ],
)
def test_analytic_direct_exchange_fills_the_busiest_link(
    collective: str, topology: str, least_s: float
) -> None:
    asked = {
        "collective": collective,
        "topology": topology,
        "algorithm": "direct",
        "size_bytes": 1 << 26,
        "link_bytes_per_s": 50e9,
        "latency_s": 1e-6,
    }
    analytic, flow = evaluate(**asked, fidelity=["analytic", "flow"])["time_s"]
    assert analytic == pytest.approx(least_s, rel=1e-3)
    assert analytic <= flow == pytest.approx(least_s, rel=0.02)
