"""Claims about scheduling: replays of the engines' own schedulers, iteration by iteration.

The stored runs are vLLM's v1 scheduler, and SGLang's without overlap, on a virtual clock: a batch
takes `a + b * tokens + c * keys` seconds. Iterations are priced by the same function here, and the
coefficients are powers of two, so equal decisions give equal times to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.tables.rows import STORED_RUNS, evaluated
from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.prefixes import Prefixes, of_sessions
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ReplicaLimits, load_router, load_scheduler
from simulators.serving.engine.replica import PRICE, ReplicaState, kernel
from simulators.serving.engine.service import EngineKernels, serve

FOLDER = "engine_oracle"

TIMES = {"scheduled_s": at.SCHEDULED, "first_token_s": at.FIRST_TOKEN, "last_token_s": at.COMPLETED}

Run = Mapping[str, Any]
Columns = Mapping[str, np.ndarray[Any, Any]]


@kernel(PRICE)
def linear(step: Floats, _shape: Ints, table: Floats, price: Floats) -> float:
    """Price a batch at a + b * tokens + c * keys."""
    price[:] = 0.0
    price[at.BASE_S] = table[0] + table[1] * step[at.TOKENS] + table[2] * step[at.PREFILL_KV]
    price[at.SLOPE_S], price[at.UNTIL_KV] = table[2], np.inf
    return price[at.BASE_S] + price[at.SLOPE_S] * step[at.DECODE_KV]  # type: ignore[no-any-return]


def runs(reference: Path) -> Iterator[dict[str, Any]]:
    """Yield a row per stored run: whether all iterations are equal, and the first difference.

    Raises:
        UserError: the tables are absent.
    """
    folder = reference / FOLDER
    if not folder.is_dir():
        raise UserError(f"{folder} is absent")
    for engine, prefix in STORED_RUNS["prefixes"].items():
        stored, *rest = (
            pl.read_parquet(folder / f"{prefix}{name}.parquet").rename(
                STORED_RUNS["renamed"], strict=False
            )
            for name in ("runs", "requests", "iterations")
        )
        parts = [table.partition_by("run", as_dict=True) for table in rest]
        for run in stored.iter_rows(named=True):
            requests, iterations = (table[(run["run"],)].to_dict() for table in parts)
            columns = {name: column.to_numpy() for name, column in requests.items()}
            label = next(differences(run, columns, iterations, engine), "")
            yield {"engine": engine, "run": run["run"], "is_equal": not label, "label": label}


def differences(
    run: Run, requests: Columns, iterations: Mapping[str, pl.Series], engine: str = "vllm"
) -> Iterator[str]:
    """Yield the differences between a stored run and ours: the first iteration, then requests."""
    state = replay(run, requests, engine)
    log = pl.DataFrame(state.log[: state.clock[at.LOG_ROWS]], schema=list(at.LOG_COLUMNS))
    count = min(log.height, run["iterations"])
    differ = {
        name: (log[ours].to_numpy()[:count], iterations[name].to_numpy()[:count])
        for name, ours in STORED_RUNS["compared"].items()
    }
    unequal = np.array([ours != theirs for ours, theirs in differ.values()]).any(axis=0)
    if unequal.any():
        first = int(unequal.argmax())
        found = (
            f"{name} {ours[first]:.10g}, stored {theirs[first]:.10g}"
            for name, (ours, theirs) in differ.items()
            if ours[first] != theirs[first]
        )
        yield f"iteration {first}: {'; '.join(found)}"
    if log.height != run["iterations"]:
        yield f"{log.height} iterations, stored {run['iterations']}"
    ours: Columns = {n: state.times[:, column] for n, column in TIMES.items() if n in requests}
    ours = {**ours, "preemptions": state.request[:, at.NUM_RECOMPUTES]}
    if run.get("enable_prefix_caching"):
        ours["cached_tokens"] = state.request[:, at.NUM_CACHED]
    for name, values in ours.items():
        if (unequal := values != requests[name]).any():
            first = int(unequal.argmax())
            yield f"request {first}: {name} {values[first]}, stored {requests[name][first]}"


def limits_of(run: Run, engine: str) -> ReplicaLimits:
    """Return the limits of a replica with the options of a stored run of an engine."""
    stated = {name: value for name, value in run.items() if not isinstance(value, Mapping)}
    options = evaluated(STORED_RUNS["limits"][engine], stated)
    if engine == "vllm":
        options["acceptance"] = (0.0,) * run["spec_tokens"]
        options["accept_cycle"] = tuple(json.loads(run["accepts"]))
    return ReplicaLimits(**options)


def replay(run: Run, requests: Columns, engine: str) -> ReplicaState:
    """Return the final state of our engine on the requests and options of a stored run."""
    scheduler = load_scheduler(STORED_RUNS["schedulers"][engine])
    router = load_router("round_robin")
    return serve(
        EngineKernels(scheduler, router, linear),
        limits_of(run, engine),
        _asked(run, requests),
        replicas=1,
        shape=np.zeros(1, np.int64),
        table=np.array([run["a_s"], run["b_s"], run["c_s"]]),
        log_rows=2 * run["iterations"],
    )


def _asked(run: Run, requests: Columns) -> Requests:
    count = requests["prompt_tokens"].size
    if "played" in requests:
        sessions: Any = requests["played"]
        return Requests(
            arrival_s=np.zeros(count),
            prompt_tokens=sessions.prompt_tokens,
            output_tokens=sessions.output_tokens,
            draws=np.zeros((count, 2)),
            session=sessions.play,
            prefixes=sessions.paths if run["enable_prefix_caching"] else None,
            graph=sessions.graph,
        )
    if "after" not in requests:
        lengths = requests["prompt_tokens"], requests["output_tokens"]
        return Requests(requests["arrival_s"], *lengths, np.zeros((count, 2)))
    is_closed = (requests["after"] == -2).any()
    return Requests(
        arrival_s=requests["given_s"],
        prompt_tokens=requests["prompt_tokens"],
        output_tokens=requests["output_tokens"],
        draws=np.zeros((count, 2)),
        clients=int((requests["after"] == -1).sum()) if is_closed else 0,
        session=requests["session"] if (requests["session"] >= 0).any() else None,
        prefixes=_prefixes(run, requests) if run["enable_prefix_caching"] else None,
    )


def _prefixes(run: Run, requests: Columns) -> Prefixes:
    """Return the paths of the requests: a node per shared block, and one for the rest."""
    lengths, block = requests["prompt_tokens"] + requests["output_tokens"], run["block_size"]
    session = requests["session"]
    if (session >= 0).any():
        return of_sessions(np.arange(session.size) - np.searchsorted(session, session), lengths)
    shared = requests["prefix_tokens"] // block
    known: dict[tuple[int, int], int] = {}
    nodes, ends = [], []
    for req, group in enumerate(requests["prefix_group"]):
        for place in range(shared[req]):
            nodes.append(known.setdefault((int(group), place), len(known)))
            ends.append((place + 1) * block)
        nodes.append(known.setdefault((-2, req), len(known)))
        ends.append(int(lengths[req]) - 1)
    return Prefixes(np.array(nodes), np.array(ends), np.cumsum(shared + 1))
