"""Small services whose answers are known, or that can be run in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Protocol
from unittest import mock

import numpy as np

from simulators.core import folder
from simulators.core.jit import Floats, Ints, Kernel
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ReplicaLimits, Scheduler, load_router, load_scheduler
from simulators.serving.engine.replica import (
    BASE_S,
    DECODE_KV,
    LAST_STAGE_S,
    PRICE,
    SCHEDULE,
    SLOPE_S,
    STAGE_BASE_S,
    STAGE_S,
    STAGE_SLOPE_S,
    TOKENS,
    UNTIL_KV,
    ReplicaState,
    View,
    kernel,
)
from simulators.serving.engine.service import EngineKernels, serve

SCHEDULERS = tuple(folder.SCHEDULERS.names())
"""All of them: a new file is under every law from its first day."""


@kernel(PRICE)
def linear_price(step: Floats, _shape: Ints, table: Floats, price: Floats) -> float:
    """Return `table[0] + table[1] * tokens + table[2] * keys` for each stage."""
    price[:] = 0.0
    fixed = table[0] + table[1] * step[TOKENS]
    price[STAGE_BASE_S], price[BASE_S] = fixed, fixed
    price[STAGE_SLOPE_S], price[SLOPE_S] = table[2], table[2]
    price[STAGE_S] = price[LAST_STAGE_S] = fixed + table[2] * step[DECODE_KV]
    price[UNTIL_KV] = inf
    return price[LAST_STAGE_S]  # type: ignore[no-any-return]


def asked(arrival_s: Floats, prompt: Ints, output: Ints) -> Requests:
    """Return requests; the draws for routers are those of a fixed seed."""
    draws = np.random.default_rng(7).random((len(arrival_s), 2))
    return Requests(
        np.asarray(arrival_s, np.float64),
        np.asarray(prompt, np.int64),
        np.asarray(output, np.int64),
        draws,
    )


def limits(scheduler: str = "vllm", **changes: object) -> ReplicaLimits:
    """Return roomy limits for a scheduler, changed where a test asks for it."""
    settings: dict[str, object] = {
        "blocks": 10_000,
        "block_size": 1 if scheduler == "lightllm" else 16,
        "watermark": 0.01,
        "max_num_seqs": 64,
        "max_prefill_tokens": 4096,
        "token_budget": 64,
        "max_model_len": 4096,
        "reserves": load_scheduler(scheduler).reserves,
        "reserves_output": load_scheduler(scheduler).reserves_output,
    }
    return ReplicaLimits(**{**settings, **changes})  # type: ignore[arg-type]


def run(
    requests: Requests,
    scheduler: Scheduler | str = "vllm",
    *,
    prices: tuple[float, float, float] = (0.01, 1e-5, 1e-7),
    router: str = "round_robin",
    replicas: int = 1,
    allowed: ReplicaLimits | None = None,
    **more: object,
) -> ReplicaState:
    """Serve requests at a linear price."""
    if isinstance(scheduler, str):
        allowed = allowed or limits(scheduler)
        scheduler = load_scheduler(scheduler)
    return serve(
        EngineKernels(scheduler, load_router(router), linear_price),
        allowed or limits(),
        requests,
        replicas=replicas,
        shape=np.zeros(1, np.int64),
        table=np.array(prices),
        **more,  # type: ignore[arg-type]
    )


def asked_each_time(scheduler: str) -> Scheduler:
    """Return a scheduler that decides the same, without saying how long the decision holds."""
    known = load_scheduler(scheduler)
    form_batch = known.schedule

    @kernel(SCHEDULE)
    def schedule(now: float, view: View) -> int:
        form_batch(now, view)
        return 1

    return Scheduler(schedule, chunked=known.chunked, reserves=known.reserves)


ASKED_EACH_TIME = {name: asked_each_time(name) for name in SCHEDULERS}


def pure_python() -> AbstractContextManager[object]:
    """Run every kernel of the package as plain Python."""
    return mock.patch.object(Kernel, "compiled", property(lambda kernel: kernel.py_func))


class RecordedRequest(Protocol):
    """A request of a plain simulation: its load, and the times of its events."""

    arrival_s: float
    prompt: int
    output: int
    times: list[float]


def assert_equal_batches(
    scheduler: str,
    requests: Sequence[RecordedRequest],
    expected: Sequence[Sequence[float]],
    allowed: ReplicaLimits,
    price: tuple[float, float],
    preemptions: Sequence[int],
) -> None:
    """Assert that a scheduler forms the batches of a plain simulation at the same times.

    `expected` has a row per batch. `preemptions` are those of each request.
    """
    columns = [[getattr(r, name) for r in requests] for name in ("arrival_s", "prompt", "output")]
    state = run(
        asked(*map(np.array, columns)),
        scheduler,
        prices=(*price, 0.0),
        allowed=allowed,
        log_rows=len(expected) + 50,
    )
    names = ("formed_s", "end_s", "requests", "tokens", "waiting", "kv_blocks")
    columns_of_log = [at.LOG_COLUMNS.index(name) for name in names]
    found = state.log[: state.clock[at.LOG_ROWS], columns_of_log]
    assert found.tolist() == [list(row) for row in expected]
    times = state.times[:, [at.SCHEDULED, at.FIRST_TOKEN, at.COMPLETED]]
    assert times.tolist() == [one.times for one in requests]
    assert state.request[:, at.NUM_RECOMPUTES].tolist() == list(preemptions)
