"""Mixtures of two designs, and the shares of groups of facts in their difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulators.core.errors import UserError
from simulators.core.fields import columns_of, updated
from simulators.serving.attribution import (
    COMMUNICATION,
    GROUPS,
    HOST,
    KERNELS,
    KV_CACHE,
    LOAD,
    METRICS,
    RELEASE,
    SCHEDULING,
    SPECULATION,
    group_of,
    mixtures,
)
from simulators.serving.options import ANALYTIC
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import simulate
from sweeper.query.attribution import UNEXPLAINED, attributed

OLD = updated(
    ServingPoint("llama3_1_8b", "h100_sxm", tp=2, dtype="fp8", requests=60),
    {
        "arrivals.process": "closed",
        "arrivals.clients": 16,
        "prompt_tokens": 512,
        "output_tokens": 64,
    },
)
CHANGES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 4},
    "gpu": {"gpu": "h200_sxm"},
    "precision": {"dtype": "bf16"},
    "chunks": {"chunk_size": 256},
    "engine": {"scheduler": "sglang", "runtime": "sglang"},
    "drafts": {"speculation.method": "eagle3"},
    "load": {"arrivals.clients": 24},
}


@pytest.mark.parametrize("change", CHANGES)
def test_mixtures_without_and_with_all_groups_are_the_designs(change: str) -> None:
    new = updated(OLD, CHANGES[change])
    both = mixtures(OLD, new)
    for point, taken in ((OLD, ()), (new, both.groups)):
        alone, found = simulate(point), both.run(taken)
        assert {n: found[n] for n in METRICS} == {n: getattr(alone, n) for n in METRICS}


@pytest.mark.parametrize(
    ("change", "group"),
    [("precision", KERNELS), ("chunks", SCHEDULING), ("drafts", SPECULATION), ("load", LOAD)],
)
def test_the_largest_share_is_that_of_the_changed_group(change: str, group: str) -> None:
    both = mixtures(OLD, updated(OLD, CHANGES[change]))
    [tpot] = [one for one in attributed(both) if one.metric == "tpot_mean_s"]
    assert tpot.ranked[0] == group


def test_shares_add_up_and_change_sign_with_the_direction() -> None:
    new = updated(OLD, CHANGES["tp"])
    there, back = (list(attributed(mixtures(*pair))) for pair in ((OLD, new), (new, OLD)))
    for one, other in zip(there, back, strict=True):
        assert one.difference == pytest.approx(one.predicted[1] - one.predicted[0])
        assert {g: -share for g, share in other.shares.items()} == pytest.approx(dict(one.shares))


def test_tensor_parallelism_speeds_up_kernels_and_slows_down_messages() -> None:
    both = mixtures(OLD, updated(OLD, CHANGES["tp"]))
    [tpot] = [one for one in attributed(both) if one.metric == "tpot_mean_s"]
    assert tpot.shares[KERNELS] < 0.0 < tpot.shares[COMMUNICATION]
    assert UNEXPLAINED not in tpot.shares


def test_groups_without_a_difference_are_no_groups() -> None:
    assert mixtures(OLD, OLD).groups == ()
    assert mixtures(OLD, updated(OLD, CHANGES["load"])).groups == (LOAD,)
    assert KV_CACHE in mixtures(OLD, updated(OLD, {"memory_fraction": 0.5})).groups
    assert mixtures(OLD, updated(OLD, {"client.frontend_s": 0.1})).groups == (HOST,)


def test_links_and_hosts_that_differ_by_the_gpu_alone_change_with_its_kernels() -> None:
    same_links = mixtures(OLD, updated(OLD, CHANGES["gpu"])).groups
    assert KERNELS in same_links
    assert not {COMMUNICATION, HOST} & set(same_links)
    assert COMMUNICATION in mixtures(OLD, updated(OLD, {"gpu": "b200_sxm"})).groups


def test_the_unexplained_part_lies_where_the_options_that_differ_change_predictions() -> None:
    chunks = mixtures(OLD, updated(OLD, CHANGES["chunks"])).remainder
    assert max(chunks, key=chunks.__getitem__) == SCHEDULING
    assert sum(chunks.values()) == pytest.approx(1.0, abs=0.01)
    assert mixtures(OLD, updated(OLD, CHANGES["load"])).remainder == {}
    [tpot] = [
        one
        for one in attributed(
            mixtures(OLD, OLD, changed=[RELEASE]), [{"tpot_mean_s": 0.02}, {"tpot_mean_s": 0.01}]
        )
        if one.metric == "tpot_mean_s"
    ]
    assert tpot.shares == {UNEXPLAINED: -0.01}
    assert tpot.ranked[0] in {HOST, KERNELS}
    with pytest.raises(UserError, match="unknown option 'weather'"):
        mixtures(OLD, OLD, changed=["weather"])


def test_all_fields_belong_to_a_group() -> None:
    groups = {group_of(column.name) for column in columns_of(ServingPoint)}
    assert groups | {COMMUNICATION} == set(GROUPS)


def test_designs_that_cannot_be_mixed_are_refused() -> None:
    with pytest.raises(UserError, match="designs of one model"):
        mixtures(OLD, replace(OLD, model="qwen3_8b"))
    with pytest.raises(UserError, match="not 'analytic'"):
        mixtures(OLD, replace(OLD, fidelity=ANALYTIC))
    pools = {"pools.prefill_gpus": 2, "pools.decode_gpus": 2}
    with pytest.raises(UserError, match="separate prefill and decode pools"):
        mixtures(OLD, updated(OLD, pools))
