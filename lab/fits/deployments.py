"""Constants fitted without a group of deployments, and fits of older releases and API servers.

A group is a model on a GPU, or a model on all its GPUs. Fits write constants without each group to
`lab/calibration/left_out/`. Claims pass these constants to the simulators, which do not read them.
docs/explanation/deployments.md describes the fits of older releases and API servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import make_interp_spline

from lab.fits import methods
from lab.fits.driver import Calibration, declared, settings
from lab.fits.engines import LEFT_OUT, PACES, SAME_CONSTANTS, by_replica
from lab.tables.deployments import NEWER, PublicDeployment, database, newer_groups, silicon
from lab.tables.disaggregated import PooledRun, drawn_runs
from lab.tables.published import online
from lab.tables.result_blocks import ResultBlock, blocks
from lab.tables.rows import Bools
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition import replica
from simulators.composition.replica import Runtime, load_runtime
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible, UnknownNameError
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.evidence.lookup import calibrations
from simulators.kernels.families.experts import MARLIN_ARCHITECTURES
from simulators.serving.demand.requests import requests_of
from simulators.serving.deployment import NO_SERVER, NUMBERS, Frontend, load_frontend
from simulators.serving.first_use import CONTINUED, PASS, compiles_continued, fitted_stalls
from simulators.serving.measured.deployments import point_of
from simulators.serving.measured.intervals import (
    OLDER_RELEASE,
    Width,
    fitted_tails,
    fitted_width,
    width_from,
)
from simulators.serving.options import AUTO
from simulators.serving.prices.iteration_table import Ends
from simulators.serving.run import RunCache
from simulators.serving.simulator import simulate
from simulators.workload.precision import BYTES, precision

CONFIG = settings(__file__)

FRONTENDS, IN_PROCESS = LEFT_OUT / "frontends.toml", LEFT_OUT / "in_process.toml"
BANDS = LEFT_OUT / "deployment_bands.toml"


def runtime_without(name: str, group: str) -> Runtime:
    """Return a runtime with constants that were fitted without a group.

    Raises UnknownNameError if no fit left this group out.
    """
    numbers = _numbers(name)
    if group not in numbers:
        raise UnknownNameError(f"group left out of runtime {name}", group, numbers)
    paces = {table: numbers[group].get(table, {}) for table in PACES}
    gaps = numbers[group]["runtime"] | numbers[group].get(name, {})
    return replica.with_rocm_constants(replace(load_runtime(name), **paces, **gaps))


def run_cache_without(name: str, group: str, decode: str = "") -> RunCache:
    """Return a run cache whose runtime and API server were fitted without a group.

    `group` is a model on a GPU; one that no fit saw has the shipped constants. Factors of older
    releases were fitted without its model. `decode`: decode kernel of such a release, if not usual.
    """
    runtime = load_runtime(name)
    if runtime.like:
        model, models = group.partition(".")[0], _numbers(name)
        times = models.get(model, {}).get("batch_times", runtime.batch_times)
        kernels = {**runtime.kernels, **({"decode": (decode,)} if decode else {})}
        return older_run_cache(runtime.like, group, times, kernels)
    if group not in _numbers(name):
        return RunCache()
    server = _server_without(runtime.framework, group) or load_frontend(name)
    return run_cache_of(runtime_without(name, group), server)


def _numbers(name: str) -> Mapping[str, Any]:
    file = LEFT_OUT / "runtimes" / f"{SAME_CONSTANTS.get(name, name)}.toml"
    return _groups(file) if file.is_file() else {}


def older_run_cache(
    like: str, group: str, times: Mapping[str, float], kernels: Mapping[str, Sequence[str]]
) -> RunCache:
    """Return the run cache of an older engine release, fitted without a group.

    `like` is the runtime of the current release, `times` the slowdown of batched kernels against it
    by family, `kernels` the frameworks whose kernels compete.
    """
    today = load_runtime(like)
    if group in _numbers(like):
        without = runtime_without(like, group)
        server = _server_without(today.framework, group) or load_frontend(like)
        return run_cache_of(replace(without, batch_times=times, kernels=kernels), server)
    return RunCache(runtime=lambda _: replace(today, batch_times=times, kernels=kernels))


def _server_without(framework: str, group: str) -> Frontend | None:
    """Return the API server fitted without a group; None if no fit saw the group."""
    server = _groups(FRONTENDS).get(group, {}).get(framework)
    return Frontend(**{number: server[number] for number in NUMBERS}) if server else None


def run_cache_of(runtime: Runtime, frontend: Frontend = NO_SERVER) -> RunCache:
    """Return a run cache with one runtime and one API server, whatever a point names."""
    return RunCache(runtime=lambda _: runtime, server=lambda _: frontend)


def online_run_cache_without(model: str) -> RunCache:
    """Return a run cache of engines called in their own process, fitted without a model."""
    left_out = _groups(IN_PROCESS)[model]
    return RunCache(process=lambda runtime: Frontend(**left_out.get(runtime, {})))


def width_without(gpu: str, framework: str, metric: str) -> Width:
    """Return the interval width of a latency, fitted to deployments on other GPUs.

    A GPU without measured deployments has the shipped width, of all GPUs.
    """
    left_out = _groups(BANDS).get(gpu)
    if left_out is None:
        return fitted_width(framework, metric)
    return width_from(left_out[framework][metric])


def width_without_page(page: str, engine: str, metric: str) -> Width:
    """Return the width of an engine, that of older releases fitted without a documentation page."""
    left_out = _groups(BANDS).get(page)
    if engine != OLDER_RELEASE or left_out is None:
        return fitted_width(engine, metric)
    return width_from(left_out[OLDER_RELEASE][metric])


def tails_without(gpu: str) -> Mapping[str, Ends]:
    """Return the errors of 99th percentiles over means, fitted to results on other GPUs."""
    known = once(read_calibration, BANDS)["tails"].get(gpu)
    if known is None:
        return fitted_tails()
    return {metric: tuple(one["ends"]) for metric, one in known.items()}


def _groups(file: Path) -> Mapping[str, Any]:
    groups: Mapping[str, Any] = once(read_calibration, file)["without"]
    return groups


OLDER: dict[str, dict[str, Any]] = CONFIG.older
"""Runtimes of releases of 2025."""

EXPERTS = "experts"
KINDS = EXPERTS, f"{replica.NARROW}{EXPERTS}", f"{replica.WIDENED}{EXPERTS}"

UNCHANGED = {"vllm": {f"{replica.NARROW}{EXPERTS}.{chip}": 1.0 for chip in MARLIN_ARCHITECTURES}}
"""Marlin's four-bit kernels, by engine."""


STEPS = np.arange(CONFIG.tried[0], CONFIG.tried[-1] + 0.01, 0.05)


def fit_older_experts(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the older releases, and their factors without each model."""
    rows, error = _errors([b for b in blocks(reference)[0] if b.point.runtime in OLDER])
    models = np.array([row.point.model for row in rows])
    kinds = np.array([_kind(row) for row in rows])
    chips = np.array([load_gpu(row.point.gpu).architecture for row in rows])
    named = np.char.add(np.char.add(kinds, "."), chips)
    is_measured = np.array([_is_measured(row) for row in rows])
    is_measured &= ~np.isin(named, list(UNCHANGED["vllm"]))

    def factors(kept: Bools) -> dict[str, float]:
        found = {}
        for kind in KINDS:
            whole = kept & is_measured & (kinds == kind)
            of_all = found[kind] = _best(error[:, whole], models[whole])
            for chip in np.unique(chips[whole]).tolist():
                mine = whole & (chips == chip)
                best, count = _best(error[:, mine], models[mine]), np.unique(models[mine]).size
                found[f"{kind}.{chip}"] = shrunk(best, of_all, count)
        return found

    without = {model: factors(models != model) for model in np.unique(models).tolist()}
    held_out = []
    for i, (row, kind, name) in enumerate(zip(rows, kinds, named, strict=True)):
        known = without[row.point.model] | UNCHANGED.get(row.framework, {})
        held_out.append(
            make_interp_spline(CONFIG.tried, error[:, i, 0], k=1)(known.get(name) or known[kind])
        )
    found = factors(np.ones(models.size, bool))
    for name, older in OLDER.items():
        same = UNCHANGED.get(older["engine"], {})
        tables = {"batch_times": found | same, "kernels": older["kernels"]}
        left_out = {model: {"batch_times": one | same} for model, one in without.items()}
        evidence = {"rows": int(is_measured.sum()), "errors": np.expm1(np.array(held_out))}
        content = {"runtime": {"like": older["like"]}, **tables}
        yield declared("older_experts", name=name, content=content, **evidence)
        file = LEFT_OUT / "runtimes" / f"{name}.toml"
        yield declared("older_experts", file=file, content={"without": left_out}, **evidence)


def shrunk(own: float, of_all: float, models: int) -> float:
    """Return the factor of an architecture, shrunk towards the global one by one pseudo-model."""
    return float((own**models * of_all) ** (1.0 / (models + 1.0)))


def _is_measured(block: ResultBlock) -> bool:
    model, (_, _, attention, _) = load_model(block.point.model), block.options["engine"]
    is_timed = not (model.fp8_channels and block.point.dtype == "fp8_block")
    is_timed = is_timed and not (model.is_latent and attention == CONFIG.unmeasured)
    return is_timed and block.point.gpu in calibrations("tensor")


def _kind(block: ResultBlock) -> str:
    how = precision(block.point.dtype)
    stored, multiplied = how.expert_weights or how.weights, how.expert_compute or how.compute
    if BYTES[stored] >= BYTES[multiplied]:
        return EXPERTS
    return KINDS[2 if BYTES[stored] > BYTES["int4"] else 1]


def _errors(results: Sequence[ResultBlock]) -> tuple[list[ResultBlock], Floats]:
    """Return mixture-of-experts results, and log(predicted / measured) by factor and result.

    Results with draft tokens are skipped, as their acceptance is unknown, and so are infeasible
    ones. The last axis is tokens per second and time per token.
    """
    rows, errors = [], []
    for block in results:
        is_drafting = block.point.speculation.method != replica.NOTHING
        if load_model(block.point.model).experts and not is_drafting:
            with contextlib.suppress(Infeasible):
                errors.append([_log_ratios(block, factor) for factor in CONFIG.tried])
                rows.append(block)
    return rows, np.array(errors).transpose(1, 0, 2)


def _log_ratios(block: ResultBlock, factor: float) -> tuple[float, float]:
    """Return the errors of a result under its release, with experts of a batch slowed down."""
    older = OLDER[block.point.runtime]
    like, decode = older["like"], {"decode": (block.decode,)} if block.decode else {}
    kernels = {**load_runtime(like).kernels, **older["kernels"], **decode}
    cache = older_run_cache(like, block.group, dict.fromkeys(KINDS, factor), kernels)
    metrics = simulate(replace(block.point, runtime=like), cache)
    assert metrics.tpot_mean_s is not None
    speed, tpot = metrics.tokens_per_s / block.tokens_per_s, metrics.tpot_mean_s / block.tpot_s
    return float(np.log(speed)), float(np.log(tpot))


def _best(error: Floats, models: np.ndarray) -> float:
    _, index, count = np.unique(models, return_inverse=True, return_counts=True)
    weight = count[index] ** -0.5
    sizes = np.abs(make_interp_spline(CONFIG.tried, error, k=1)(STEPS)).mean(axis=2) @ weight
    return float(STEPS[int(np.argmin(sizes))])


Numbers = tuple[float, float, float]  # as the fields of a Frontend


def fit_frontends(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the API servers of all frameworks, and of engines called in their own process."""
    yield from _in_process(reference)
    rows = [row for row in silicon(reference) if not row.excluded and row.client.frontend == AUTO]
    framework, group, model, measured_s = (
        np.array([getattr(row, name) for row in rows])
        for name in ("framework", "group", "model", "ttft_s")
    )

    newer = np.array(newer_groups(rows))

    def fitted(name: str, kept: Bools) -> Numbers:
        rows = ttft_s[:, kept], running[kept], measured_s[kept], group[kept].tolist()
        return fit_frontend(*rows, streams=name in CONFIG.streaming)

    servers: dict[str, Numbers] = {}
    for _ in range(CONFIG.simulations):
        ttft_s, running = engines_alone(rows, servers)
        fits = ~np.isnan(running)
        servers = {name: fitted(name, fits & (framework == name)) for name in replica.FRAMEWORKS}
    numbers: dict[tuple[str, str], Numbers] = {}
    held_out_s = np.empty(framework.size)
    for name in replica.FRAMEWORKS:
        own = fits & (framework == name)
        numbers[name, ""] = servers[name]
        for left_out in np.unique(group[own]).tolist():
            out = own & (group == left_out)
            numbers[name, left_out] = fitted(name, own & ~out)
            held_out_s[out] = frontend_s(ttft_s[:, out], running[out], numbers[name, left_out])
        for left_out in np.unique(model[own]).tolist():
            numbers[name, left_out] = fitted(name, own & (model != left_out))
        numbers[name, f"{name}.{NEWER}"] = fitted(name, own & (newer == ""))
    tables: dict[str, Any] = {}
    for (name, left_out), found in numbers.items():
        tables.setdefault(left_out, {})[name] = dict(zip(NUMBERS, found, strict=True))
    whole = declared(
        "frontends",
        content={"frontend": tables.pop("")},
        rows=int(fits.sum()),
        errors=(held_out_s / measured_s - 1.0)[fits],
    )
    yield whole
    yield replace(whole, file=FRONTENDS, content={"without": tables})


def _in_process(reference: Path) -> Iterator[Calibration]:
    runs = [run for run in online(reference) if run.keeps_up]
    [runtime] = {run.point.runtime for run in runs}
    alone = RunCache(process=lambda _: NO_SERVER)
    measured_s = np.array([run.ttft_s for run in runs])
    found = methods.fit_by_group(
        methods.LeastSquares(
            measured_s=measured_s,
            groups=[run.point.model for run in runs],
            fixed_s=np.array([simulate(run.point, alone).ttft_mean_s for run in runs]),
            constants=[
                methods.Constant("request_s", np.ones(len(runs)), mean=0.0, deviation=CONFIG.any_s)
            ],
        )
    )
    without = {
        model: {runtime: {"request_s": float(values[0])}} for model, values in found.without.items()
    }
    whole = declared(
        "in_process",
        content={"in_process": {runtime: {"request_s": float(found.values[0])}}},
        rows=len(runs),
        errors=found.held_out_s / measured_s - 1.0,
    )
    yield whole
    yield replace(whole, file=IN_PROCESS, content={"without": without})


def engines_alone(
    rows: Sequence[PublicDeployment], servers: Mapping[str, Numbers]
) -> tuple[Floats, Floats]:
    """Return simulated TTFT without the server's time, by `TOKENS_S`, and running requests.

    Clients wait for the `servers` of frameworks; no server is the default. Engines have constants
    that were fitted without the group they predict. Infeasible rows are NaN.
    """
    ttft_s, running = np.empty((len(CONFIG.tokens_s), len(rows))), np.full(len(rows), np.nan)
    for indices in by_replica(rows).values():
        runtime = runtime_without(rows[indices[0]].runtime, rows[indices[0]].group)
        request_s, _, stream_s = servers.get(rows[indices[0]].framework, (0.0, 0.0, 0.0))
        for pace, token_s in enumerate(CONFIG.tokens_s):
            server = Frontend(request_s=request_s, token_s=token_s, stream_s=stream_s)
            cache = run_cache_of(runtime, server)
            for i in indices:
                try:
                    found = simulate(point_of(rows[i]), cache)
                except Infeasible:
                    continue
                assert found.ttft_mean_s is not None
                assert found.tpot_mean_s is not None
                running[i] = found.tokens_per_s * found.tpot_mean_s  # Little's law
                ttft_s[pace, i] = found.ttft_mean_s - request_s - stream_s * running[i]
    return ttft_s, running


def fit_frontend(
    ttft_s: Floats,
    running: Floats,
    measured_s: Floats,
    groups: Sequence[str],
    *,
    streams: bool = True,
) -> Numbers:
    """Return seconds per request, per prompt token, and per running request.

    Simulated `ttft_s` has a row for each of `TOKENS_S`. `measured_s`: measured TTFT. `streams`:
    whether the time grows with running requests, whose tokens one process sends.
    """
    weights = methods.group_weights(groups)
    found: list[tuple[float, Numbers]] = []
    design = np.stack([np.ones_like(measured_s), running * streams], axis=-1)
    for token_s, engine_s in zip(CONFIG.tokens_s, ttft_s, strict=True):
        request_s, stream_s = methods.least_log_error(
            design,
            engine_s,
            measured_s,
            weights,
            scale=measured_s.mean() / np.array([1.0, running.mean()]),
            rounds=CONFIG.rounds,
            soften=lambda error: (np.abs(error) + CONFIG.least_error) ** -0.5,
        ).tolist()
        numbers = (request_s, token_s, stream_s)
        error = np.abs(np.log(frontend_s(ttft_s, running, numbers) / measured_s))
        found.append((float(weights @ error), numbers))
    return min(found)[1]


def frontend_s(ttft_s: Floats, running: Floats, numbers: Numbers) -> Floats:
    """Return TTFT behind an API server with given numbers."""
    request_s, token_s, stream_s = numbers
    engine_s = ttft_s[CONFIG.tokens_s.index(token_s)]
    return np.asarray(engine_s + request_s + stream_s * running, np.float64)


MOST_CLIENTS, RUNS = 2100, 240
"""Runs that are simulated: those with at most so many clients, and at most so many of them."""

WAITS_S = np.arange(0.0, 0.6, 0.01)


def fit_pools(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the wait for other ranks of prefill workers, and the wait without each engine.

    One number, the least mean |log error| of TTFT over all runs whose prefill workers have
    data-parallel attention. TTFT is simulated without the wait, which is added: prompts wait side
    by side. In turn an engine, a model or a GPU is left out; without the wait the median error of
    TTFT is 34 %, with it 27, 23 and 25 %. A wait of all deployments with pools, or one per layer
    of the model, is worse without a model.
    """
    runs, alone_s = [], []
    for run in drawn_runs(reference, MOST_CLIENTS, RUNS):
        if (run.point.pools.prefill_attention_dp or 1) > 1:
            with contextlib.suppress(Infeasible):
                alone_s.append(_ttft_without_wait(run))
                runs.append(run)
    predicted_s, measured_s = np.array(alone_s), np.array([run.ttft_s for run in runs])
    engines = np.array([run.framework for run in runs])
    without: dict[str, dict[str, float]] = {}
    errors = np.empty(len(runs))
    for engine in sorted(set(engines.tolist())):
        out = engines == engine
        wait_s = _fitted_wait_s(predicted_s[~out], measured_s[~out])
        without[engine] = {"rank_wait_s": wait_s}
        errors[out] = (predicted_s[out] + wait_s) / measured_s[out] - 1.0
    content = {"prefill": {"rank_wait_s": _fitted_wait_s(predicted_s, measured_s)}}
    whole = declared("pools", content=content, rows=len(runs), errors=errors)
    yield whole
    yield replace(whole, file=LEFT_OUT / whole.file.name, content={"without": without})


def _ttft_without_wait(run: PooledRun) -> float:
    cache = RunCache()
    cache.rank_wait_s = 0.0
    found = simulate(run.point, cache).ttft_mean_s
    assert found is not None
    return found


def _fitted_wait_s(predicted_s: Floats, measured_s: Floats) -> float:
    errors = [np.abs(np.log((predicted_s + wait) / measured_s)).mean() for wait in WAITS_S]
    return float(WAITS_S[int(np.argmin(errors))])


def rank_wait_without(engine: str) -> float:
    """Return the wait in seconds, fitted to other engines."""
    known = once(read_calibration, LEFT_OUT / "pools.toml")["without"]
    return float(known[engine]["rank_wait_s"])


STALLS_S = np.concatenate([np.arange(0.0, 5.0, 0.05), np.arange(5.0, 120.0, 0.5)])


@dataclass(frozen=True)
class FreshStart:
    """A deployment on a fresh server, and its 99th percentile of TTFT without a stall."""

    row: PublicDeployment
    is_continued: bool  # whether a kernel that continues prompts is compiled
    warm_s: float

    @property
    def kind(self) -> tuple[str, str]:
        """Framework and architecture, which have times of their own."""
        return self.row.framework, load_gpu(self.row.gpu).architecture

    @property
    def lengths(self) -> str:
        """Lengths of prompts and answers, which are left out together."""
        return lengths_of(self.row)


def lengths_of(row: PublicDeployment) -> str:
    """Return the name of a pair of lengths in `lab/calibration/left_out/first_use.toml`."""
    return f"{row.prompt} {row.output}"


def fit_first_use(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the stall of first prompts on fresh servers, and that without each pair of lengths.

    Two times by framework and architecture: of a first pass, from servers that compile no kernel
    for cut prompts, and of that kernel. Each has the least mean |log error| of P99 of TTFT; a
    configuration that was repeated on several days counts once per day.
    """
    starts = list(_fresh_starts(reference))
    pairs = sorted({one.lengths for one in starts})
    without = {name: _stalls([one for one in starts if one.lengths != name]) for name in pairs}
    predicted_s = [one.warm_s + _stall_of(one, without[one.lengths]) for one in starts]
    measured_s = [one.row.ttft_p99_s for one in starts]
    errors = np.array(predicted_s) / np.array(measured_s, np.float64) - 1.0
    content = {"stall": _stalls(starts)}
    whole = declared("first_use", content=content, rows=len(starts), errors=errors)
    yield whole
    yield replace(whole, file=LEFT_OUT / whole.file.name, content={"without": without})


def stalls_without(row: PublicDeployment) -> Mapping[str, Any]:
    """Return the stalls of fresh servers fitted without a row's lengths."""
    known: Mapping[str, Any] = once(read_calibration, LEFT_OUT / "first_use.toml")["without"]
    return known[lengths_of(row)] if lengths_of(row) in known else fitted_stalls()


def _fresh_starts(reference: Path) -> Iterator[FreshStart]:
    caches: dict[tuple[str, str], RunCache] = {}
    known: dict[Any, float | None] = {}
    for row in database(reference):
        is_warmed = load_engine(row.framework).warms_prompts
        if is_warmed or not row.is_fresh or not row.ttft_p99_s:
            continue
        point = point_of(replace(row, is_fresh=False))
        if point not in known:
            cache = caches.setdefault(
                (row.runtime, row.model), run_cache_without(row.runtime, row.model)
            )
            with contextlib.suppress(Infeasible):
                known[point] = simulate(point, cache).ttft_p99_s
        if (seconds := known.get(point)) is not None:
            yield FreshStart(row, compiles_continued(point, requests_of(point)), seconds)


def _stalls(starts: Sequence[FreshStart]) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (framework, architecture), some in methods.grouped(starts, lambda one: one.kind).items():
        times = found.setdefault(framework, {}).setdefault(architecture, {})
        times[PASS] = _least([one for one in some if not one.is_continued], 0.0)
        if of_cut := [one for one in some if one.is_continued]:
            times[CONTINUED] = _least(of_cut, times[PASS])
    return found


def _least(starts: Sequence[FreshStart], known_s: float) -> float:
    warm_s = np.array([one.warm_s + known_s for one in starts])
    measured_s = np.array([one.row.ttft_p99_s for one in starts], np.float64)
    errors = [np.abs(np.log((warm_s + stall) / measured_s)).mean() for stall in STALLS_S.tolist()]
    return float(STALLS_S[int(np.argmin(errors))])


def _stall_of(start: FreshStart, stalls: Mapping[str, Any]) -> float:
    framework, architecture = start.kind
    times = stalls[framework][architecture]
    return float(times[PASS] + times.get(CONTINUED, 0.0) * start.is_continued)
