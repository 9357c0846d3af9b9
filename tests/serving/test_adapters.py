"""LoRA adapters: distinct adapters per batch, memory, misses and added time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from deploy.deployments.serving import deployment
from simulators.core.columns import schema_of
from simulators.core.errors import Infeasible
from simulators.core.fields import updated, values_of
from simulators.core.jit import Floats
from simulators.serving.adapters import AdapterSet, distinct, fleet_of, missing_share, popularity
from simulators.serving.deployment import deployment_of
from simulators.serving.engine import replica as at
from simulators.serving.options import ArrivalsConfig
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import prices_of
from simulators.serving.simulator import SIMULATOR, simulate

PLAIN = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    scheduler="vllm_v1",
    prompt_tokens=256,
    output_tokens=64,
    arrivals=ArrivalsConfig(process="closed", clients=32),
    requests=96,
    max_batch=64,
)
MANY = replace(PLAIN, lora=replace(PLAIN.lora, adapters=64))


def fleet(point: ServingPoint) -> AdapterSet:
    found = fleet_of(point, deployment_of(point).hardware)
    assert found is not None
    return found


def tpot_s(point: ServingPoint) -> float:
    found = simulate(point).tpot_mean_s
    assert found is not None
    return found


def test_lora_options_have_no_effect_without_adapters() -> None:
    other = replace(
        PLAIN,
        lora=replace(PLAIN.lora, rank=64, zipf=1.0, slots=3),
    )
    assert simulate(other) == simulate(PLAIN)


def test_expected_distinct_adapters_match_random_draws() -> None:
    shares, random = popularity(40, 1.0), np.random.default_rng(0)
    drawn = random.choice(40, size=(4000, 24), p=shares)
    found = np.mean([np.unique(batch).size for batch in drawn])
    assert distinct(shares, np.array([24.0]))[0] == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("kept", [4, 20])
def test_adapter_miss_rate_matches_an_lru_cache(kept: int) -> None:
    shares, random = popularity(50, 0.8), np.random.default_rng(0)
    there: list[int] = []
    missed = 0
    wanted = random.choice(50, size=20_000, p=shares).tolist()
    for one in wanted:
        if one in there:
            there.remove(one)
        else:
            missed += 1
            del there[: max(0, len(there) - kept + 1)]
        there.append(one)
    assert missing_share(50, 0.8, kept) == pytest.approx(missed / len(wanted), rel=0.03)


def test_more_adapters_and_higher_ranks_are_slower() -> None:
    times = [
        tpot_s(replace(PLAIN, lora=replace(PLAIN.lora, adapters=count))) for count in (0, 1, 8, 64)
    ]
    assert times == sorted(times)
    assert tpot_s(MANY) < tpot_s(replace(MANY, lora=replace(MANY.lora, rank=64)))
    assert tpot_s(replace(MANY, lora=replace(MANY.lora, targets="attention"))) < tpot_s(MANY)
    assert tpot_s(replace(MANY, lora=replace(MANY.lora, zipf=1.5))) < tpot_s(MANY)


def test_number_of_adapters_is_irrelevant_with_per_token_gather() -> None:
    one, many = (
        tpot_s(replace(MANY, lora=replace(MANY.lora, adapters=count, kernels="by_token")))
        for count in (1, 64)
    )
    assert one == pytest.approx(many, rel=0.05)
    assert one > tpot_s(replace(MANY, lora=replace(MANY.lora, adapters=1)))


def test_adapters_reduce_the_kv_blocks() -> None:
    point = replace(MANY, lora=replace(MANY.lora, slots=64))
    plain, adapted = simulate(PLAIN).kv_blocks, simulate(point).kv_blocks
    block_bytes = 16 * 131_072
    assert plain - adapted == pytest.approx(fleet(point).bytes_per_gpu / block_bytes, abs=1.0)
    assert fleet(replace(point, tp=2)).bytes_per_gpu == fleet(point).bytes_per_gpu / 2


def test_request_with_an_adapter_miss_waits_for_the_host() -> None:
    none = replace(
        PLAIN,
        lora=replace(PLAIN.lora, adapters=640, slots=640, rank=8),
    )
    some = replace(none, lora=replace(none.lora, slots=64))
    assert fleet(none).missing == 0.0
    assert fleet(some).missing == pytest.approx(0.9)
    waits_s = prefill_s(some) - prefill_s(none)
    assert waits_s == pytest.approx(fleet(some).missing * fleet(some).load_s)


def prefill_s(point: ServingPoint) -> float:
    return price(point, prompts=1.0)[at.LAST_STAGE_S]


def price(point: ServingPoint, prompts: float = 0.0, decodes: float = 0.0) -> Floats:
    table, kernel = prices_of(point, deployment_of(point).hardware)
    step, found = np.zeros(at.STEP_COLUMNS), np.zeros(2 * at.PRICE_COLUMNS)
    tokens = 256.0 * prompts
    step[at.PREFILLS], step[at.PREFILL_TOKENS], step[at.PREFILL_KV] = prompts, tokens, tokens
    step[at.PREFILL_PAIRS] = tokens * 257.0 / 2.0
    step[at.DECODES], step[at.DECODE_KV] = decodes, 300.0 * decodes
    step[at.TOKENS] = step[at.ALL_RANK_TOKENS] = tokens + decodes
    step[at.LOGITS_ROWS] = prompts + decodes
    kernel(step, table.shape, table.table, found)
    plain = np.zeros_like(found)
    kernel.py_func(step, table.shape, table.table, plain)
    np.testing.assert_allclose(found, plain, rtol=1e-12)
    return found


@pytest.mark.parametrize(
    "layout", [{"tp": 2}, {"pp": 2}, {"runtime": "eager"}, {"colocation.time_share": 0.5}]
)
def test_adapters_lengthen_every_pipeline_stage(layout: dict[str, object]) -> None:
    plain, adapted = (
        price(updated(point, layout), decodes=32.0)  # type: ignore[arg-type]
        for point in (PLAIN, MANY)
    )
    for column in (at.STAGE_S, at.LAST_STAGE_S, at.ENERGY_J, at.BASE_J):
        assert adapted[column] > plain[column]
    busy_s = adapted[at.BASE_S] + adapted[at.SLOPE_S] * 32.0 * 300.0
    whole_s = max(busy_s, adapted[at.MIN_S]) + adapted[at.ADDED_S]
    assert adapted[at.LAST_STAGE_S] == pytest.approx(whole_s, rel=1e-12)


def test_prefix_cache_is_separate_per_adapter() -> None:
    chats = replace(
        PLAIN,
        arrivals=replace(PLAIN.arrivals, process="poisson"),
        cache=replace(PLAIN.cache, prefix_caching=True),
        sessions=replace(PLAIN.sessions, system_prompt_tokens=500, turns=2),
    )
    none, one, many = (
        simulate(replace(chats, lora=replace(chats.lora, adapters=count))).prefix_hit_ratio
        for count in (0, 1, 64)
    )
    assert none == one > many > 0.0
    alike, apart = (
        simulate(replace(chats, lora=replace(chats.lora, adapters=64, zipf=zipf))).prefix_hit_ratio
        for zipf in (2.0, 0.0)
    )
    assert one > alike > apart


def test_gpu_adapter_slots_follow_the_engine_option() -> None:
    design = replace(MANY, lora=replace(MANY.lora, adapters=640), max_batch=128, chunk_size=2048)
    assert (
        fleet(design).kept
        == fleet(replace(design, lora=replace(design.lora, slots=128))).kept
        == 128
    )
    assert "--max-loras 128" in deployment(design, "vllm").replace(" \\\n ", "")


def test_all_options_together_complete_every_request() -> None:
    point = replace(
        MANY,
        cache=replace(MANY.cache, prefix_caching=True),
        sessions=replace(MANY.sessions, system_prompt_tokens=100),
        lora=replace(MANY.lora, slots=64, zipf=1.0),
        colocation=replace(
            MANY.colocation, models="qwen3_4b", sharing="mps", sm_share=0.6, kv_pool="shared"
        ),
        memory_fraction=0.5,
    )
    found = simulate(point)
    assert found.completed_requests == point.requests
    assert found.rejected_requests == 0


def test_batch_size_changes_adapter_slots_and_prevents_result_reuse() -> None:
    few = replace(
        MANY,
        lora=replace(MANY.lora, adapters=640),
        arrivals=replace(MANY.arrivals, clients=4),
        requests=16,
    )
    rows = [values_of(replace(few, max_batch=most)) for most in (64, 256)]
    together = SIMULATOR.evaluate(pa.RecordBatch.from_pylist(rows, schema_of(ServingPoint)))
    apart = [simulate(replace(few, max_batch=most)).ttft_mean_s for most in (64, 256)]
    assert together.column("ttft_mean_s").to_pylist() == apart
    assert apart[0] != apart[1]


def test_explanation_names_the_lora_gemms() -> None:
    rows = SIMULATOR.explain(values_of(MANY))
    found = [row for row in rows if row.name == "adapters"]
    assert len(found) == 2
    whole, e2e_s = sum(row.time_s for row in rows), simulate(MANY).e2e_mean_s
    assert e2e_s == pytest.approx(whole)
    assert 0.05 < sum(row.time_s for row in found) / whole < 0.6


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (replace(MANY, lora=replace(MANY.lora, slots=8)), "adapter_slots_below_batch"),
        (
            replace(MANY, speculation=replace(MANY.speculation, method="ngram")),
            "adapters_with_drafts",
        ),
        (replace(MANY, fidelity="analytic"), "adapters_needs_fidelity_event"),
        (replace(MANY, model="deepseek_v2_lite"), "adapters_need_plain_attention"),
        (replace(MANY, model="mixtral_8x7b", tp=8), "adapter_targets_all_needs_dense_layers"),
        (
            replace(MANY, lora=replace(MANY.lora, adapters=4000, rank=256), max_batch=4000),
            "adapters_exceed_hbm",
        ),
    ],
)
def test_options_not_modelled_with_lora_are_refused(point: ServingPoint, reason: str) -> None:
    with pytest.raises(Infeasible) as verdict:
        simulate(point)
    assert verdict.value.reason == reason
