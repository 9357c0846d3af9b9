"""Speculative decoding: acceptance, cost, and unchanged runs without draft tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest

from simulators.catalog.model import load_model
from simulators.composition.replica import load_runtime
from simulators.core.calibration import reference_folder
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import updated
from simulators.core.folder import once, read_toml
from simulators.serving.deployment import deployment_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.batches import accepted
from simulators.serving.engine.limits import ReplicaLimits
from simulators.serving.options import SPECULATIONS
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import MeanLoad, drafted_s, prices_of, worth_drafting
from simulators.serving.run import prepare, run_of
from simulators.serving.simulator import simulate
from simulators.serving.speculation import (
    PUBLISHED,
    drafter_of,
    last_step_excess,
    mean_acceptance_length,
    ranked,
    survival,
    tree_survival,
)
from tests.serving.cases import ASKED_EACH_TIME

PLAIN = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    scheduler="vllm_v1",
    requests=60,
    qps=4.0,
    prompt_tokens=200,
    output_tokens=100,
)
SCHEDULERS = ("vllm_v1", "vllm", "sglang", "trtllm", "sarathi", "lightllm", "orca")


def limits(rates: tuple[float, ...]) -> np.ndarray:
    return ReplicaLimits(
        blocks=10,
        block_size=16,
        watermark=0.0,
        max_num_seqs=1,
        max_prefill_tokens=1,
        token_budget=1,
        max_model_len=10,
        num_draft_tokens=len(rates),
        acceptance=rates,
        seed=3,
    ).vector()


@pytest.mark.parametrize("method", SPECULATIONS)
def test_zero_draft_tokens_equal_the_plain_run(method: str) -> None:
    assert simulate(
        replace(PLAIN, speculation=replace(PLAIN.speculation, method=method, num_draft_tokens=0))
    ) == simulate(PLAIN)


def test_acceptance_rates_match_and_depend_only_on_position() -> None:
    shares = survival("", "0.8 0.5", 4)
    assert shares == pytest.approx((0.8, 0.4, 0.2, 0.1))
    replica_limits = limits(shares)
    drawn = np.array(
        [
            [accepted(replica_limits, len(shares), who, done) for done in range(300)]
            for who in range(100)
        ]
    )
    for count, share in enumerate(shares, start=1):
        assert np.mean(drawn >= count) == pytest.approx(share, abs=0.01)
    assert 1.0 + drawn.mean() == pytest.approx(mean_acceptance_length(shares), abs=0.02)
    assert (
        accepted(replica_limits, 4, 7, 40)
        == accepted.py_func(replica_limits, 4, 7, 40)
        == drawn[7, 40]
    )
    assert np.ptp(drawn.mean(axis=1)) < 0.4  # no request is lucky
    assert np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1] < 0.02


def test_long_outputs_take_the_expected_number_of_iterations() -> None:
    shares, later = survival("", "0.8 0.5", 4), 400
    replica_limits = limits(shares)
    needed = []
    for who in range(200):
        done = count = 0
        while done < later:
            done += 1 + accepted(replica_limits, len(shares), who, done)
            count += 1
        needed.append(count)
    foreseen = (later + last_step_excess(shares)) / mean_acceptance_length(shares)
    assert np.mean(needed) == pytest.approx(foreseen, rel=0.005)


HOW = (
    {"speculation.method": "ngram", "speculation.disable_batch": 20},
    {"speculation.method": "eagle", "speculation.topk": 4, "speculation.tree_nodes": 12},
)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_token_is_emitted_once_and_every_block_is_freed(
    scheduler: str, how: dict[str, Any]
) -> None:
    point = replace(
        updated(PLAIN, {**how, "speculation.acceptance": "0.7"}),
        scheduler=scheduler,
        qps=None,
        arrivals=replace(PLAIN.arrivals, process="closed", clients=40),
        memory_fraction=0.26,
        max_context=4096,
        cache=replace(PLAIN.cache, block_size=1 if scheduler == "lightllm" else 16),
    )
    run = run_of(point)
    request = run.state.request
    assert np.all(request[:, at.NUM_COMPUTED] == request[:, at.PROMPT] + request[:, at.OUTPUT])
    assert run.metrics().completed_requests == point.requests
    assert np.all(run.state.pool[:, at.FREE_BLOCKS] == run.state.pool[:, at.TOTAL_BLOCKS])


@pytest.mark.parametrize(
    "drafts",
    [
        {"speculation.method": "eagle"},
        {
            "speculation.method": "eagle",
            "speculation.topk": 4,
            "speculation.tree_nodes": 12,
        },
        {
            "speculation.method": "draft",
            "speculation.draft_model": "llama3_2_1b",
            "speculation.acceptance": "0.7",
        },
        {"speculation.method": "ngram", "speculation.disable_batch": 8},
    ],
)
def test_repeated_speculative_batch_equals_rescheduling(
    drafts: dict[str, Any],
) -> None:
    prepared = prepare(
        updated(replace(PLAIN, qps=30.0, prompt_tokens=1000, output_tokens=400), drafts)
    )
    each = replace(prepared.engine, scheduler=ASKED_EACH_TIME["vllm_v1"])
    held, formed = prepared.run().state, replace(prepared, engine=each).run().state
    assert np.array_equal(held.request, formed.request)
    assert np.array_equal(held.times[:, : at.STALLED], formed.times[:, : at.STALLED])
    assert np.array_equal(held.gaps, formed.gaps)
    assert held.gauge == pytest.approx(formed.gauge, rel=1e-12)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("scheduler", ["vllm_v1", "sglang", "trtllm"])
def test_sessions_with_prefix_cache_and_drafts_conserve_blocks(
    scheduler: str, how: dict[str, Any]
) -> None:
    run = run_of(
        replace(
            updated(
                PLAIN,
                {**how, "speculation.acceptance": "0.7"},
            ),
            scheduler=scheduler,
            sessions=replace(PLAIN.sessions, turns=3),
            qps=30.0,
            cache=replace(PLAIN.cache, prefix_caching=True),
            memory_fraction=0.26,
            max_context=4096,
            kv_dtype="fp8",
        )
    )
    request = run.state.request
    assert np.all(request[:, at.NUM_COMPUTED] == request[:, at.PROMPT] + request[:, at.OUTPUT])
    assert np.all(run.state.pool[:, at.FREE_BLOCKS] == run.state.pool[:, at.TOTAL_BLOCKS])
    assert run.metrics().completed_requests == run.point.requests


def test_certain_acceptance_divides_the_iterations() -> None:
    alone = replace(PLAIN, requests=1, output_tokens=101)
    sure = replace(
        alone,
        speculation=replace(alone.speculation, method="ngram", num_draft_tokens=4, acceptance="1"),
    )
    never = replace(sure, speculation=replace(sure.speculation, acceptance="0"))
    assert simulate(alone).iterations == simulate(never).iterations == 101
    assert simulate(sure).iterations == 1 + 100 // 5


def test_drafts_take_time_and_memory() -> None:
    plain, look_up, head, model = (
        simulate(updated(PLAIN, {"requests": 1, "speculation.acceptance": "0", **drafts}))
        for drafts in (
            {},
            {"speculation.method": "ngram"},
            {"speculation.method": "eagle"},
            {"speculation.method": "draft", "speculation.draft_model": "llama3_2_1b"},
        )
    )
    times = [m.tpot_mean_s for m in (plain, look_up, head, model)]
    assert times == sorted(times)
    blocks = [m.kv_blocks for m in (plain, look_up, head, model)]
    assert blocks[0] == blocks[1] > blocks[2] > blocks[3]
    assert plain.energy_j_per_token < head.energy_j_per_token


def test_speculation_gain_falls_with_batch_size() -> None:
    def gain(clients: int) -> float:
        point = replace(
            PLAIN,
            arrivals=replace(PLAIN.arrivals, process="closed", clients=clients),
            requests=100 + 2 * clients,
            max_batch=clients,
            prompt_tokens=16,
            output_tokens=64,
            chunk_size=8192,
        )
        drafted = replace(
            point, speculation=replace(point.speculation, method="eagle", num_draft_tokens=5)
        )
        return simulate(point).tpot_mean_s / simulate(drafted).tpot_mean_s

    assert gain(1) > 1.5
    assert gain(256) < 1.0


def test_tree_acceptance_lies_between_chain_and_sum() -> None:
    rates = (0.7, 0.6, 0.5)
    chain = survival("", "0.7 0.6 0.5", 3)
    assert tree_survival(rates, 0.7, 1, 3) == (pytest.approx(chain), 3)
    small, count = tree_survival(rates, 0.7, 3, 8)
    large, _ = tree_survival(rates, 0.7, 8, 60)
    assert count == 8
    assert (
        mean_acceptance_length(chain)
        < mean_acceptance_length(small)
        < mean_acceptance_length(large)
        < 4.0
    )
    assert all(above >= below for above, below in pairwise(large))
    assert tree_survival((0.5,), 0.7, 4, 99)[1] == 4  # there are no more nodes
    assert sum(ranked(0.5, 0.7, 50)) < 1.0


@pytest.mark.parametrize("fidelity", ["event", "analytic"])
def test_draft_trees_emit_more_tokens_and_compute_more_rows(fidelity: str) -> None:
    alone = replace(
        PLAIN,
        requests=20,
        qps=0.01,
        speculation=replace(PLAIN.speculation, method="eagle"),
        fidelity=fidelity,
    )
    chain = simulate(alone)
    tree = simulate(replace(alone, speculation=replace(alone.speculation, topk=4, tree_nodes=16)))
    wide = simulate(replace(alone, speculation=replace(alone.speculation, topk=8, tree_nodes=100)))
    assert tree.itl_mean_s > chain.itl_mean_s
    assert tree.tpot_mean_s < chain.tpot_mean_s
    assert wide.itl_mean_s > tree.itl_mean_s


def test_certain_tree_equals_certain_chain() -> None:
    sure = replace(
        PLAIN,
        requests=1,
        output_tokens=101,
        speculation=replace(PLAIN.speculation, method="eagle", acceptance="1"),
    )
    tree = replace(
        sure,
        speculation=replace(sure.speculation, num_draft_tokens=4, topk=4, tree_nodes=16),
    )
    assert (
        simulate(tree).iterations
        == simulate(
            replace(sure, speculation=replace(sure.speculation, num_draft_tokens=4))
        ).iterations
    )


def test_speculation_stops_above_the_batch_limit() -> None:
    busy = replace(
        PLAIN,
        chunk_size=512,
        arrivals=replace(PLAIN.arrivals, process="closed", clients=30),
        speculation=replace(PLAIN.speculation, method="ngram", acceptance="0.7"),
    )
    never, always = (
        simulate(replace(busy, speculation=replace(busy.speculation, disable_batch=n)))
        for n in (1, 10_000)
    )
    assert always == simulate(busy)
    assert never.iterations > 1.5 * always.iterations
    few = simulate(replace(busy, speculation=replace(busy.speculation, disable_batch=15)))
    assert never.iterations > few.iterations > always.iterations


def test_draft_model_adds_host_time_and_eagle3_has_a_small_head() -> None:
    known = {}
    for name in ("eagle", "eagle3"):
        point = replace(
            PLAIN,
            scheduler="sglang",
            runtime="sglang",
            speculation=replace(PLAIN.speculation, method=name),
        )
        drafter = drafter_of(point, deployment_of(point).hardware)
        assert drafter is not None
        assert drafter.hardware is not None
        known[name] = drafter.hardware.replica
        host_s = known[name].runtime.host_s * len(drafter.survival)
        assert host_s == pytest.approx(2.0 * load_runtime("sglang").host_s)
    assert known["eagle"].model.vocab == load_model(PLAIN.model).vocab > 32_000
    assert known["eagle3"].model.vocab == 32_000


def test_medusa_heads_are_gemms_over_all_verified_tokens() -> None:
    point = replace(
        PLAIN,
        model="llama2_7b",
        gpu="a100_sxm",
        speculation=replace(PLAIN.speculation, method="medusa", num_draft_tokens=4),
    )
    hardware = deployment_of(point).hardware
    chain, tree = (
        drafter_of(updated(point, more), hardware)
        for more in ({}, {"speculation.topk": 10, "speculation.tree_nodes": 63})
    )
    assert chain is not None
    assert tree is not None
    assert (chain.alone, chain.wide, chain.width, tree.width) == (0, 1, 5, 64)
    assert chain.kv_bytes_per_token == 0.0
    assert chain.weight_bytes == tree.weight_bytes == 2 * 4 * 4096 * (32_000 + 4096)
    table, price = prices_of(point, hardware, tree)
    checked = prices_of(
        replace(point, speculation=replace(point.speculation, method="ngram")),
        hardware,
        replace(tree, hardware=None),
    )
    heads_s = drafted_s(table, price, 1.0, 63, 500.0) - drafted_s(*checked, 1.0, 63, 500.0)
    streamed_s = chain.weight_bytes / 2.039e12
    assert streamed_s < heads_s < 2.0 * streamed_s
    assert 2.2 < 1.0 + sum(tree.survival) < 2.9  # 2.31 were published
    event, steady = (simulate(replace(point, fidelity=f)) for f in ("event", "analytic"))
    assert event.tpot_mean_s == pytest.approx(steady.tpot_mean_s, rel=0.1)
    assert event.energy_j_per_token == pytest.approx(steady.energy_j_per_token, rel=0.2)


def test_adaptive_speculation_maximizes_tokens_per_second() -> None:
    """Also where prompts take the time: then none, but the drafter still reads them."""
    plain = replace(PLAIN, arrivals=replace(PLAIN.arrivals, process="closed"))
    for prompt, output, clients in (
        (200, 100, 1),
        (200, 100, 200),
        (200, 600, 200),
        (1000, 100, 60),
    ):
        load = replace(
            plain,
            prompt_tokens=prompt,
            output_tokens=output,
            arrivals=replace(plain.arrivals, clients=clients),
            max_batch=clients,
            requests=3 * clients + 10,
        )
        counts = [
            simulate(
                replace(
                    load, speculation=replace(load.speculation, method="eagle", num_draft_tokens=k)
                )
            )
            for k in (0, 1, 5)
        ]
        best = max(one.tokens_per_s for one in counts)
        found = simulate(
            replace(
                load,
                speculation=replace(
                    load.speculation, method="eagle", num_draft_tokens=5, rule="adaptive"
                ),
            )
        )
        assert found.tokens_per_s > 0.95 * best


def test_adaptive_speculation_drafts_less_under_load() -> None:
    hardware = deployment_of(PLAIN).hardware
    point = replace(
        PLAIN, speculation=replace(PLAIN.speculation, method="eagle", num_draft_tokens=5)
    )
    drafter = drafter_of(point, hardware)
    assert drafter is not None
    table, price = prices_of(point, hardware, drafter)
    decodes = MeanLoad(context=700.0, prompt_tokens=0.0, output_tokens=100.0, max_batch=256)
    mixed = replace(decodes, prompt_tokens=650.0, budget=512.0)
    worth, beside = (worth_drafting(drafter.survival, table, price, n) for n in (decodes, mixed))
    for found in (worth, beside):
        assert list(found) == sorted(found, reverse=True)
        assert found[0] > found[-1]
    assert all(fewer <= more for fewer, more in zip(beside, worth, strict=True))


def test_unsupported_speculation_has_a_reason() -> None:
    with pytest.raises(Infeasible, match="speculation_needs_pp_1"):
        simulate(replace(PLAIN, speculation=replace(PLAIN.speculation, method="eagle"), pp=2))
    with pytest.raises(Infeasible, match="ngram_drafts_no_tree"):
        simulate(replace(PLAIN, speculation=replace(PLAIN.speculation, method="ngram", topk=2)))
    with pytest.raises(Infeasible, match="adaptive_drafts_are_a_chain"):
        simulate(
            replace(
                PLAIN,
                speculation=replace(PLAIN.speculation, method="eagle", topk=2, rule="adaptive"),
            )
        )
    with pytest.raises(Infeasible, match="draft_nodes_do_not_fit: 2 nodes, 3 levels"):
        simulate(
            replace(
                PLAIN,
                speculation=replace(PLAIN.speculation, method="eagle", topk=2, tree_nodes=2),
            )
        )
    with pytest.raises(Infeasible, match="needs_draft_model"):
        simulate(
            replace(PLAIN, speculation=replace(PLAIN.speculation, method="draft", acceptance="0.7"))
        )
    with pytest.raises(UserError, match="no acceptance rate of 'draft' is measured"):
        simulate(
            replace(
                PLAIN,
                speculation=replace(PLAIN.speculation, method="draft", draft_model="llama3_2_1b"),
            )
        )
    with pytest.raises(UserError, match="write one rate between 0 and 1"):
        simulate(
            replace(
                PLAIN, speculation=replace(PLAIN.speculation, method="ngram", acceptance="often")
            )
        )
    with pytest.raises(Infeasible, match="speculation_needs_pp_1"):
        simulate(
            replace(
                PLAIN,
                speculation=replace(PLAIN.speculation, method="eagle"),
                pp=2,
                fidelity="analytic",
            )
        )


def test_transferred_acceptance_rates_widen_the_interval() -> None:
    def reach(**drafts: object) -> float:
        found = simulate(updated(PLAIN, drafts))
        return found.tpot_mean_s_hi / found.tpot_mean_s_lo

    measured, own = (
        {"speculation.method": "ngram", "speculation.acceptance": rates} for rates in ("", "0.3")
    )
    assert reach(**measured) > 1.2 * reach(**own)
    assert reach(**own) == pytest.approx(reach())


LENGTHS = once(read_toml, PUBLISHED)


@pytest.mark.parametrize(("method", "model"), [(m, name) for m in LENGTHS for name in LENGTHS[m]])
def test_published_lengths_are_the_default_and_later_drafts_are_accepted_less(
    method: str, model: str
) -> None:
    facts = LENGTHS[method][model]
    assert load_model(model).name == model
    counts = facts.get("drafts", range(1, 1 + len(facts["lengths"])))
    for drafts, length in zip(counts, facts["lengths"], strict=True):
        shares = survival(method, "", drafts, model)
        assert mean_acceptance_length(shares) == pytest.approx(length, abs=1e-9)
        assert all(0.0 <= later <= earlier <= 1.0 for earlier, later in pairwise([1.0, *shares]))
    assert survival(method, "0.5", 2, model) == (0.5, 0.25)
    assert survival(method, "", 3, "llama3_1_8b") == survival(method, "", 3)


def test_published_lengths_equal_the_reference_table() -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("no reference tables")
    table = pl.read_parquet(reference / "recipes" / "acceptance_lengths.parquet")
    asked = table.filter(pl.col("thinking") == "on", pl.col("draft_tokens") <= 8)
    files = {
        facts["source"].split("/")[1].split(",")[0]: facts["lengths"]
        for models in LENGTHS.values()
        for facts in models.values()
        if facts["source"].startswith("InferenceX")
    }
    for file, lengths in files.items():
        own = asked.filter(pl.col("source_path").str.ends_with(file)).sort("draft_tokens")
        assert own["mean_accept_length"].to_list() == lengths


COMBINED: tuple[dict[str, Any], ...] = (
    {"sessions.turns": 4, "cache.prefix_host_bytes": 1e11},
    {"tp": 1, "attention_dp": 8, "ep": 8, "sessions.turns": 4},
    {"pools.prefill_gpus": 8, "pools.decode_gpus": 8, "sessions.turns": 4},
    {
        "workload": "agentic",
        "prompt_tokens": 0,
        "output_tokens": 0,
        "cache.prefix_host_bytes": 1e11,
    },
)


@pytest.mark.parametrize("how", COMBINED)
@pytest.mark.parametrize("runtime", ["vllm", "sglang", "trtllm"])
def test_calibrated_engines_draft_with_caches_tiers_ranks_and_pools(
    runtime: str, how: dict[str, Any]
) -> None:
    point = updated(
        ServingPoint(
            model="deepseek_v4_pro",
            gpu="b200_sxm",
            tp=8,
            dtype="fp8_block+w4a8",
            kv_dtype="fp8",
            scheduler="vllm_v1" if runtime == "vllm" else runtime,
            runtime=runtime,
            requests=16,
            qps=2.0,
            prompt_tokens=8000,
            output_tokens=300,
        ),
        {"cache.prefix_caching": True, "speculation.method": "mtp", **how},
    )
    found, plain = simulate(point), simulate(updated(point, {"speculation.num_draft_tokens": 0}))
    assert found.completed_requests == plain.completed_requests
    assert found.mean_acceptance_length == pytest.approx(2.49, abs=0.06)
    assert found.tpot_mean_s < plain.tpot_mean_s
    assert found.tpot_mean_s_hi - found.tpot_mean_s_lo > 0.0
    assert found.prefix_hit_ratio > 0.0
