"""Fit what servers add to the first token, to deployments whose engines are simulated first.

A server works on one prompt after another, so many seconds a token: of some such paces that are
simulated the best is taken. The rest of a measured time to the first token is a sum of a time per
request and some iterations. A framework's three numbers make the mean |log(predicted / measured)|
least, by least squares with weights that are corrected in rounds; groups count as the square root
of their rows. Engines run with the numbers of `composition` that
were fitted without the group they predict, and each group and each model is left out here in turn
as well.

Where a process asks its own engine, under rates that this keeps up with, what is left is a time per
request: it is the same few milliseconds of a small model and of a large one, which iterations are
not. Each model is left out in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.left_out import runtime_without, shelf_of
from lab.fits.methods.positive_least_squares import (
    Constant,
    Problem,
    fit,
    group_weights,
    least_log_error,
)
from lab.fits.steady_state import by_replica
from lab.tables.deployments import SILICON, PublicDeployment, silicon
from lab.tables.published_runs import ONLINE, online
from simulators.composition.replica import FRAMEWORKS
from simulators.core.jit import Floats
from simulators.serving.engine.frontend import CALIBRATION, IN_PROCESS, NO_SERVER, NUMBERS, Frontend
from simulators.serving.measured_deployments import point_of
from simulators.serving.point import AUTO
from simulators.serving.run import RunCache
from simulators.serving.simulator import simulate

Numbers = tuple[float, float, float]  # as the fields of a Frontend

TOKENS_S = tuple(1e-6 * pace for pace in (0.0, 2.0, 5.0, 10.0))
"""Paces of a server that are tried, per prompt token."""

FOLDER = CALIBRATION.parent
SPLIT = "each group of a model and a GPU in turn"
OTHER_MODEL = "each model in turn"

ANY_S = 0.1
"""A process may take any time to hear of a request that is much less than this, in seconds."""

TAILS = (0.05, 0.95)
"""Of measured over predicted times. The next group lies outside the range of `n` seen ones more
often than one row in ten, so the logarithm is stretched by `1 + 1 / n`."""

ROUNDS = 30
LEAST_ERROR = 0.02
"""Errors below this weigh alike, so that no single row decides."""


@dataclass(frozen=True)
class Rows:
    """Deployments with what their engines took, by our account."""

    deployed: Sequence[PublicDeployment]
    ttft_s: Floats  # a row for each of the servers' paces
    tpot_s: Floats

    def of(self, which: NDArray[np.bool_]) -> Rows:
        """Return some of the rows."""
        kept = [d for d, w in zip(self.deployed, which, strict=True) if w]
        return Rows(kept, self.ttft_s[:, which], self.tpot_s[which])

    def column(self, name: str) -> Floats:
        """Return what the table says of each row."""
        return np.array([getattr(d, name) for d in self.deployed])


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the servers of all frameworks, fitted to public deployments, and engines without."""
    if not only or IN_PROCESS.stem in only:
        yield from _in_process(reference)
    if only and CALIBRATION.stem not in only:
        return
    rows = engines_alone([row for row in silicon(reference) if not row.excluded])
    framework, group = rows.column("framework"), rows.column("group")
    model = rows.column("model")
    numbers: dict[tuple[str, str], Numbers] = {}
    held_out_s = np.empty(framework.size)
    for name in sorted(FRAMEWORKS, reverse=True):  # as the file lists them
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
    lines: dict[bool, list[str]] = {False: [], True: []}
    for (name, left_out), found in numbers.items():
        others = (framework == name) & (group != left_out) & (model != left_out)
        stretch = 1.0 + 1.0 / np.unique(group[others]).size
        title = f'without."{left_out}".{name}' if left_out else f"frontend.{name}"
        lines[bool(left_out)] += _lines(
            title, found, {n: r[others] ** stretch for n, r in ratios.items()}
        )
    whole = calibration(
        CALIBRATION.stem,
        hashes(reference, [SILICON]),
        rows=framework.size,
        split=SPLIT,
        held_out=1.0 / ratios["ttft"] - 1.0,
        lines=lines[False],
    )
    yield whole
    yield replace(whole, folder=LEFT_OUT, lines=lines[True])


def _in_process(reference: Path) -> Iterator[Calibration]:
    """Yield what an engine takes to hear of requests that its own process asks by the clock."""
    runs = [run for run in online(reference) if run.keeps_up]
    [runtime] = {run.point.runtime for run in runs}
    alone = RunCache(process=lambda _: NO_SERVER)
    found = fit(
        Problem(
            measured_s=np.array([run.ttft_s for run in runs]),
            groups=[run.point.model for run in runs],
            fixed_s=np.array([simulate(run.point, alone).ttft_mean_s for run in runs]),
            constants=[Constant("request_s", np.ones(len(runs)), mean=0.0, deviation=ANY_S)],
        )
    )
    measured_s = np.array([run.ttft_s for run in runs])
    whole = calibration(
        IN_PROCESS.stem,
        hashes(reference, [ONLINE]),
        rows=len(runs),
        split=OTHER_MODEL,
        held_out=found.held_out_s / measured_s - 1.0,
        lines=_request_line(f"in_process.{runtime}", found.values),
    )
    yield whole
    lines = [
        _request_line(f'without."{model}".{runtime}', values)
        for model, values in found.without.items()
    ]
    yield replace(whole, folder=LEFT_OUT, lines=[line for some in lines for line in some])


def _request_line(title: str, values: Floats) -> list[str]:
    return table_lines(title, {"request_s": float(values[0])}, ".3g")


def engines_alone(rows: Sequence[PublicDeployment]) -> Rows:
    """Return what the engines of deployments take behind servers of all paces, that add no more.

    Their groups are left out.
    """
    ttft_s, tpot_s = np.empty((len(TOKENS_S), len(rows))), np.empty(len(rows))
    for indices in by_replica(rows).values():
        runtime = runtime_without(rows[indices[0]].runtime, rows[indices[0]].group)
        for pace, token_s in enumerate(TOKENS_S):
            shelf = shelf_of(runtime, Frontend(token_s=token_s))
            for i in indices:
                found = simulate(replace(point_of(rows[i]), frontend=AUTO), shelf)
                ttft_s[pace, i], tpot_s[i] = found.ttft_mean_s, found.tpot_mean_s
    return Rows(rows, ttft_s, tpot_s)


def fit_frontend(rows: Rows) -> Numbers:
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


def predicted_ttft_s(rows: Rows, numbers: Numbers) -> Floats:
    """Return times to the first token behind a server of given numbers."""
    request_s, token_s, iterations = numbers
    served_s: Floats = rows.ttft_s[TOKENS_S.index(token_s)]
    return served_s + request_s + iterations * rows.tpot_s


def _lines(title: str, numbers: Numbers, ratios: Mapping[str, Floats]) -> list[str]:
    """Return one server as TOML, with the bands that the ratios of groups left out give."""
    lines = table_lines(title, dict(zip(NUMBERS, numbers, strict=True)), ".4g")
    for metric, ratio in ratios.items():
        lo, hi = np.quantile(ratio, TAILS)
        lines.append(f"{metric}_band = [{lo:.4g}, {hi:.4g}]")
    return lines
