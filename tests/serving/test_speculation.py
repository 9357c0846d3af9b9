"""Drafted tokens: how many count, what they cost, and that a run without them stays what it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulators.core.errors import Infeasible, UserError
from simulators.serving.engine import replica as at
from simulators.serving.engine.drafts import accepted
from simulators.serving.engine.limits import Limits
from simulators.serving.point import SPECULATIONS, ServingPoint
from simulators.serving.run import run_of
from simulators.serving.simulator import simulate
from simulators.serving.speculation.acceptance import (
    last_step_excess,
    survival,
    tokens_per_step,
)

PLAIN = ServingPoint(
    model="llama3_1_8b", gpu="h100_sxm", scheduler="vllm_v1", requests=60, qps=4.0,
    prompt_tokens=200, output_tokens=100,
)  # fmt: skip
SCHEDULERS = ("vllm_v1", "vllm", "sglang", "trtllm", "sarathi", "lightllm", "orca")


def limits(rates: tuple[float, ...]) -> np.ndarray:
    return Limits(
        blocks=10, block_size=16, watermark=0.0, seats=1, batch_tokens=1, chunk=1, most_tokens=10,
        drafted=len(rates), survival=rates, seed=3,
    ).vector()  # fmt: skip


@pytest.mark.parametrize("method", SPECULATIONS)
def test_nothing_drafted_is_the_plain_run(method: str) -> None:
    assert simulate(replace(PLAIN, speculation=method, draft_tokens=0)) == simulate(PLAIN)


def test_what_is_accepted_has_the_shares_asked_for_and_depends_on_its_place_alone() -> None:
    shares = survival("", "0.8 0.5", 4)
    assert shares == pytest.approx((0.8, 0.4, 0.2, 0.1))
    told = limits(shares)
    drawn = np.array([[accepted(told, who, done) for done in range(300)] for who in range(100)])
    for count, share in enumerate(shares, start=1):
        assert np.mean(drawn >= count) == pytest.approx(share, abs=0.01)
    assert 1.0 + drawn.mean() == pytest.approx(tokens_per_step(shares), abs=0.02)
    assert accepted(told, 7, 40) == accepted.py_func(told, 7, 40) == drawn[7, 40]
    assert np.ptp(drawn.mean(axis=1)) < 0.4  # no request is lucky
    assert np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1] < 0.02


def test_long_answers_need_as_many_iterations_as_are_drawn() -> None:
    shares, later = survival("", "0.8 0.5", 4), 400
    told = limits(shares)
    needed = []
    for who in range(200):
        done = count = 0
        while done < later:
            done += 1 + accepted(told, who, done)
            count += 1
        needed.append(count)
    foreseen = (later + last_step_excess(shares)) / tokens_per_step(shares)
    assert np.mean(needed) == pytest.approx(foreseen, rel=0.005)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_token_comes_once_and_every_block_returns(scheduler: str) -> None:
    point = replace(
        PLAIN, scheduler=scheduler, speculation="ngram", acceptance="0.7", qps=None,
        arrivals="closed", clients=40, memory_fraction=0.26, max_context=4096,
        block_size=1 if scheduler == "lightllm" else 16,
    )  # fmt: skip
    run = run_of(point)
    request = run.state.request
    assert np.all(request[:, at.DONE] == request[:, at.PROMPT] + request[:, at.OUTPUT])
    assert run.metrics().completed_requests == point.requests
    assert np.all(run.state.pool[:, at.FREE] == run.state.pool[:, at.TOTAL])


def test_sure_drafts_divide_the_iterations() -> None:
    alone = replace(PLAIN, requests=1, output_tokens=101)
    sure = replace(alone, speculation="ngram", draft_tokens=4, acceptance="1")
    never = replace(sure, acceptance="0")
    assert simulate(alone).iterations == simulate(never).iterations == 101
    assert simulate(sure).iterations == 1 + 100 // 5


def test_drafts_take_time_and_memory() -> None:
    plain, look_up, head, model = (
        simulate(replace(PLAIN, requests=1, acceptance="0", **drafts))
        for drafts in (
            {},
            {"speculation": "ngram"},
            {"speculation": "eagle"},
            {"speculation": "draft", "draft_model": "llama3_2_1b"},
        )
    )
    times = [m.tpot_mean_s for m in (plain, look_up, head, model)]
    assert times == sorted(times)
    blocks = [m.kv_blocks for m in (plain, look_up, head, model)]
    assert blocks[0] == blocks[1] > blocks[2] > blocks[3]
    assert plain.energy_j_per_token < head.energy_j_per_token


def test_gains_fall_with_the_batch() -> None:
    def gain(clients: int) -> float:
        point = replace(
            PLAIN, arrivals="closed", clients=clients, requests=100 + 2 * clients,
            max_batch=clients, prompt_tokens=16, output_tokens=64, chunk_size=8192,
        )  # fmt: skip
        drafted = replace(point, speculation="eagle", draft_tokens=5)
        return simulate(point).tpot_mean_s / simulate(drafted).tpot_mean_s

    assert gain(1) > 1.5
    assert gain(256) < 1.0


def test_what_cannot_be_drafted_says_why() -> None:
    with pytest.raises(Infeasible, match="speculation_needs_pp_1"):
        simulate(replace(PLAIN, speculation="eagle", pp=2))
    with pytest.raises(Infeasible, match="needs_draft_model"):
        simulate(replace(PLAIN, speculation="draft", acceptance="0.7"))
    with pytest.raises(UserError, match="how often drafts of 'draft' are accepted is not known"):
        simulate(replace(PLAIN, speculation="draft", draft_model="llama3_2_1b"))
    with pytest.raises(UserError, match="write one rate between 0 and 1"):
        simulate(replace(PLAIN, speculation="ngram", acceptance="often"))
    with pytest.raises(Infeasible, match="speculation_needs_pp_1"):
        simulate(replace(PLAIN, speculation="eagle", pp=2, fidelity="analytic"))


def test_rates_of_other_models_make_later_tokens_less_sure() -> None:
    def reach(**drafts: object) -> float:
        found = simulate(replace(PLAIN, **drafts))
        return found.tpot_mean_s_hi / found.tpot_mean_s_lo

    measured, own = ({"speculation": "ngram", "acceptance": rates} for rates in ("", "0.3"))
    assert reach(**measured) > 1.2 * reach(**own)
    assert reach(**own) == pytest.approx(reach())
