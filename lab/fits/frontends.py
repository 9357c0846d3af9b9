"""Fit the times that API servers add to the first token, by deployments with simulated engines.

A server tokenises one prompt after another, at a pace per token that is chosen from a few simulated
ones. The rest of a measured TTFT is a time per request and some iterations of the engine. The three
numbers of a framework minimise the mean absolute log error; groups weigh as the square root of
their rows. Engines run with constants fitted without the group they predict; each group and each
model is left out here as well.

Where a process calls its own engine at rates that it sustains, what is left is a time per request,
equal for small and large models. Each model is left out in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.left_out import run_cache_of, runtime_without
from lab.fits.methods.held_out import quantile
from lab.fits.methods.positive_least_squares import (
    Constant,
    LeastSquares,
    fit,
    group_weights,
    least_log_error,
)
from lab.fits.steady_state import by_replica
from lab.tables.deployments import SILICON, PublicDeployment, silicon
from lab.tables.published import ONLINE_TABLE, online
from lab.tables.rows import Bools
from simulators.composition.replica import FRAMEWORKS
from simulators.core.fields import updated
from simulators.core.jit import Floats
from simulators.evidence.intervals import COVERED
from simulators.serving.deployment import CALIBRATION, IN_PROCESS, NO_SERVER, NUMBERS, Frontend
from simulators.serving.measured_deployments import point_of
from simulators.serving.point import AUTO
from simulators.serving.run import RunCache
from simulators.serving.simulator import simulate

Numbers = tuple[float, float, float]  # as the fields of a Frontend

FOLDER = CALIBRATION.parent
TOKENS_S = (0.0, 2e-6, 5e-6, 10e-6)
"""Candidates for a server's seconds per prompt token."""

ANY_S = 0.1
"""Deviation of the prior of a process's time per request: wide."""

ROUNDS, LEAST_ERROR = 30, 0.02
"""Rounds of weights, and the error below which rows weigh alike."""


@dataclass(frozen=True)
class FrontendRows:
    """Deployments with the simulated times of their engines."""

    deployed: Sequence[PublicDeployment]
    ttft_s: Floats  # a row for each of TOKENS_S
    tpot_s: Floats

    def of(self, which: Bools) -> FrontendRows:
        """Return some of the rows."""
        kept = [d for d, w in zip(self.deployed, which, strict=True) if w]
        return FrontendRows(kept, self.ttft_s[:, which], self.tpot_s[which])

    def column(self, name: str) -> Any:
        """Return a field of each row."""
        return np.array([getattr(d, name) for d in self.deployed])


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the servers of all frameworks, and engines that their own process calls."""
    if not only or IN_PROCESS.stem in only:
        yield from _in_process(reference)
    if only and CALIBRATION.stem not in only:
        return
    rows = engines_alone([row for row in silicon(reference) if not row.excluded])
    framework, group, model = (rows.column(name) for name in ("framework", "group", "model"))
    numbers: dict[tuple[str, str], Numbers] = {}
    held_out_s = np.empty(framework.size)
    for name in FRAMEWORKS:
        own = framework == name
        numbers[name, ""] = fit_frontend(rows.of(own))
        for left_out in np.unique(group[own]).tolist():
            held_out = own & (group == left_out)
            numbers[name, left_out] = fit_frontend(rows.of(own & ~held_out))
            held_out_s[held_out] = predicted_ttft_s(rows.of(held_out), numbers[name, left_out])
        for left_out in np.unique(model[own]).tolist():
            numbers[name, left_out] = fit_frontend(rows.of(own & (model != left_out)))
    ratios = {
        "tpot": rows.column("tpot_s") / rows.tpot_s,
        "ttft": rows.column("ttft_s") / held_out_s,
    }
    frontends: dict[str, Any] = {}
    without: dict[str, Any] = {}
    for (name, left_out), found in numbers.items():
        others = (framework == name) & (group != left_out) & (model != left_out)
        widen = 1.0 + 1.0 / np.unique(group[others]).size
        table: dict[str, Any] = dict(zip(NUMBERS, found, strict=True))
        for metric, ratio in ratios.items():
            table[f"{metric}_band"] = quantile(ratio[others], COVERED) ** widen
        place = without.setdefault(left_out, {}) if left_out else frontends
        place[name] = table
    whole = Calibration(
        name=CALIBRATION.stem,
        content={"frontend": frontends},
        tables=[SILICON],
        rows=framework.size,
        split="each group of a model and a GPU in turn",
        errors=1.0 / ratios["ttft"] - 1.0,
    )
    yield whole
    yield replace(whole, folder=LEFT_OUT, content={"without": without})


def _in_process(reference: Path) -> Iterator[Calibration]:
    """Yield the time per request of an engine that its own process calls at given times."""
    runs = [run for run in online(reference) if run.keeps_up]
    [runtime] = {run.point.runtime for run in runs}
    alone = RunCache(process=lambda _: NO_SERVER)
    measured_s = np.array([run.ttft_s for run in runs])
    found = fit(
        LeastSquares(
            measured_s=measured_s,
            groups=[run.point.model for run in runs],
            fixed_s=np.array([simulate(run.point, alone).ttft_mean_s for run in runs]),
            constants=[Constant("request_s", np.ones(len(runs)), mean=0.0, deviation=ANY_S)],
        )
    )
    whole = Calibration(
        name=IN_PROCESS.stem,
        content={"in_process": {runtime: {"request_s": float(found.values[0])}}},
        style=".3g",
        tables=[ONLINE_TABLE],
        rows=len(runs),
        split="each model in turn",
        errors=found.held_out_s / measured_s - 1.0,
    )
    yield whole
    without = {
        model: {runtime: {"request_s": float(values[0])}} for model, values in found.without.items()
    }
    yield replace(whole, folder=LEFT_OUT, content={"without": without})


def engines_alone(rows: Sequence[PublicDeployment]) -> FrontendRows:
    """Return simulated times of deployments behind servers of all paces that add no more.

    Engines have the constants fitted without their groups.
    """
    ttft_s, tpot_s = np.empty((len(TOKENS_S), len(rows))), np.empty(len(rows))
    for indices in by_replica(rows).values():
        runtime = runtime_without(rows[indices[0]].runtime, rows[indices[0]].group)
        for pace, token_s in enumerate(TOKENS_S):
            shelf = run_cache_of(runtime, Frontend(token_s=token_s))
            for i in indices:
                found = simulate(updated(point_of(rows[i]), {"client.frontend": AUTO}), shelf)
                ttft_s[pace, i], tpot_s[i] = found.ttft_mean_s, found.tpot_mean_s
    return FrontendRows(rows, ttft_s, tpot_s)


def fit_frontend(rows: FrontendRows) -> Numbers:
    """Return seconds per request, seconds per prompt token, and iterations."""
    measured = rows.column("ttft_s")
    weights = group_weights([d.group for d in rows.deployed])
    found: list[tuple[float, Numbers]] = []
    design = np.stack([np.ones_like(measured), rows.tpot_s], axis=-1)
    for token_s, ttft_s in zip(TOKENS_S, rows.ttft_s, strict=True):
        request_s, iterations = least_log_error(
            design,
            ttft_s,
            measured,
            weights,
            scale=measured.mean() / design.mean(axis=0),
            rounds=ROUNDS,
            soften=lambda error: (np.abs(error) + LEAST_ERROR) ** -0.5,
        ).tolist()
        numbers = (request_s, token_s, iterations)
        error = np.abs(np.log(predicted_ttft_s(rows, numbers) / measured))
        found.append((float(weights @ error), numbers))
    return min(found)[1]


def predicted_ttft_s(rows: FrontendRows, numbers: Numbers) -> Floats:
    """Return times to the first token behind a server of given numbers."""
    request_s, token_s, iterations = numbers
    served_s: Floats = rows.ttft_s[TOKENS_S.index(token_s)]
    return served_s + request_s + iterations * rows.tpot_s
