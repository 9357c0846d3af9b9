"""Deployments measured in public against ours, each with its model on its GPU left out of all fits.

Beside ours stand aiconfigurator 0.12.0, the strongest peer, on the rows it answers, and the times
that the data sheet alone would give. A decision is a choice among alternatives for one load (model,
GPU, lengths and clients): other frameworks, precisions and cuts. Its regret is the throughput per
GPU given up by following a prediction instead of the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from simulators.composition.deployments import FRAMEWORKS, MEAN, Deployed, by_replica

from lab.fits.engines import least_s
from lab.tables.deployments import SILICON, silicon
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.serving.answer.neighbour_correction import corrected, load_of
from simulators.serving.engine.frontend import band_of, is_left_out
from simulators.serving.measured_deployments import point_of
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

Flags = NDArray[np.bool_]

FEWEST = 4
"""Alternatives that make a decision, and rows that make a family."""


@dataclass(frozen=True)
class Predicted:
    """Measured rows with ours, the peer's and the data sheet's times; NaN where none is given."""

    rows: Sequence[Deployed]
    measured: dict[str, Floats]  # by metric
    ours: dict[str, Floats]
    peer: dict[str, Floats]
    bound: dict[str, Floats]

    def where(self, choose: Callable[[Deployed], bool]) -> Flags:
        """Return which rows are chosen."""
        return np.array([choose(row) for row in self.rows], bool)


METRICS = TPOT, TTFT = "TPOT", "TTFT"


def deployment_checks(reference: Path, rows: str) -> Iterator[Check]:
    """Yield all checks on public deployments; excluded rows are simulated for `all` alone."""
    if not (reference / SILICON).is_file():
        yield Check(name="deployments", value=None, note=f"absent: {SILICON}")
        return
    known = silicon(reference)
    found = predict([row for row in known if rows == "all" or not row.excluded])
    kept = found.where(lambda row: not row.excluded)
    if not kept.any():
        yield Check(name="deployments", value=None, note=f"{SILICON} has no row that is kept")
        return
    yield from _accuracy(found, kept)
    if rows == "all":
        yield from _errors(found, np.ones(kept.size, bool), "with excluded rows", limits={})
    yield from _near_checks(found, kept)
    yield from _decision_checks(found, kept)
    yield from _coverage_checks(found, kept)


def predict(rows: Sequence[Deployed]) -> Predicted:
    """Return what the simulator says of deployments, their groups left out of its numbers."""
    ours = np.empty((len(rows), 2))
    bound = np.empty(len(rows))
    for indices in by_replica(rows).values():
        shelf = Shelf()
        bound[indices] = least_s([rows[i] for i in indices])
        for i in indices:
            point = point_of(rows[i], left_out=is_left_out(rows[i].framework, rows[i].group))
            metrics = simulate(point, shelf)
            ours[i] = metrics.tpot_mean_s, metrics.ttft_mean_s
    return Predicted(
        rows,
        {TPOT: _column(rows, "tpot_s"), TTFT: _column(rows, "ttft_s")},
        {TPOT: ours[:, 0], TTFT: ours[:, 1]},
        {TPOT: _column(rows, "peer_tpot_s"), TTFT: _column(rows, "peer_ttft_s")},
        {TPOT: bound},
    )


def _column(rows: Sequence[Deployed], name: str) -> Floats:
    values = [getattr(row, name) for row in rows]
    return np.array([np.nan if value is None else value for value in values])


LIMITS = {
    ("TPOT", "mean", "all"): 15.0,
    ("TPOT", "median", "all"): 11.0,
    ("TPOT", "mean", "dense"): 13.0,
    ("TPOT", "mean", "h100_sxm, peer's rows"): 9.0,
    ("TTFT", "median", "all"): 24.0,
    ("TTFT", "mean", "all"): 36.0,
    ("TTFT", "within 2x", "all"): 88.0,
}
"""In percent; the share within a factor of two is at least, errors are at most."""


def _accuracy(found: Predicted, kept: Flags) -> Iterator[Check]:
    """Yield the errors of ours and the peer's over all rows and over kinds of rows."""
    answered = ~np.isnan(found.peer[TPOT])
    gpus = sorted({row.gpu for row in found.rows})
    kinds = {"all": kept, "peer's rows": kept & answered}
    kinds |= {"dense": kept & found.where(lambda row: row.is_dense)}
    kinds |= {"experts": kept & found.where(lambda row: not row.is_dense)}
    for gpu in gpus:
        here = kept & found.where(lambda row, gpu=gpu: row.gpu == gpu)  # type: ignore[misc]
        if here.any():
            kinds |= {gpu: here, f"{gpu}, peer's rows": here & answered}
    for name in FRAMEWORKS:
        kinds[name] = kept & found.where(lambda row, name=name: row.framework == name)  # type: ignore[misc]
    for kind, which in kinds.items():
        if which.any():
            yield from _errors(found, which, kind, LIMITS)


def _errors(
    found: Predicted, which: Flags, kind: str, limits: dict[tuple[str, str, str], float]
) -> Iterator[Check]:
    """Yield mean, median and share within 2x of both metrics on some rows."""
    for metric in METRICS:
        ours, measured = found.ours[metric][which], found.measured[metric][which]
        peer = found.peer[metric][which]
        answered = ~np.isnan(peer)
        mine, theirs = _summary(ours, measured), _summary(peer[answered], measured[answered])
        note = f"peer {_text(theirs)}" if answered.any() else "peer answers none"
        if metric == TPOT:
            note += f"; data sheet {_text(_summary(found.bound[metric][which], measured))}"
        for i, name in enumerate(("mean", "median", "within 2x")):
            limit = limits.get((metric, name, kind))
            if i > 0 and limit is None:
                continue
            better = mine[i] >= limit if name == "within 2x" and limit else None
            yield Check(
                name=f"deployments {metric} {name}, {kind}",
                value=mine[i],
                unit="%",
                limit=limit,
                ok=None if limit is None else (mine[i] <= limit if better is None else better),
                rows=int(which.sum()),
                note=f"ours {_text(mine)}; {note}",
            )


def _summary(predicted: Floats, measured: Floats) -> tuple[float, float, float, float]:
    """Return mean, median, share within 2x and 90th percentile of the error, in percent."""
    if not measured.size:
        return (np.nan,) * 4
    error = 100.0 * np.abs(predicted / measured - 1.0)
    within = 100.0 * np.mean(np.abs(np.log2(predicted / measured)) <= 1.0)
    return float(error.mean()), float(np.median(error)), float(within), _percentile(error, 90.0)


def _percentile(values: Floats, q: float) -> float:
    return float(np.percentile(values, q))


def _text(summary: tuple[float, float, float, float]) -> str:
    mean, median, within, p90 = summary
    return f"{mean:.1f}/{median:.1f}, p90 {p90:.0f}, {within:.0f} % within 2x"


NEAR_LIMITS = {TPOT: ("mean", 8.0), TTFT: ("median", 17.0)}


def _near_checks(found: Predicted, kept: Flags) -> Iterator[Check]:
    """Yield the errors after three measured rows of each family: lightest, middle and heaviest."""
    families: dict[tuple[str, ...], list[int]] = {}
    for i in np.flatnonzero(kept).tolist():
        families.setdefault(found.rows[i].family, []).append(i)
    for metric, (statistic, limit) in NEAR_LIMITS.items():
        ratios = found.measured[metric] / found.ours[metric]
        ours, measured = [], []
        for members in families.values():
            if len(members) < FEWEST:
                continue
            order = sorted(members, key=lambda i: _load(found.rows[i]))
            seen = [order[0], order[len(order) // 2], order[-1]]
            rest = [i for i in members if i not in seen]
            known = [(load_of(found.rows[i]), float(ratios[i])) for i in seen]
            factors = corrected(known, [load_of(found.rows[i]) for i in rest], metric)
            ours.append(found.ours[metric][rest] * factors)
            measured.append(found.measured[metric][rest])
        name = f"deployments {metric} {statistic}, after three rows"
        if not ours:
            yield Check(name=name, value=None, note=f"no family has {FEWEST} rows")
            continue
        summary = _summary(np.concatenate(ours), np.concatenate(measured))
        value = summary[("mean", "median").index(statistic)]
        yield Check(
            name=name,
            value=value,
            unit="%",
            limit=limit,
            ok=value <= limit,
            rows=sum(part.size for part in ours),
            note=f"ours {_text(summary)}; {len(ours)} families",
        )


def _load(row: Deployed) -> tuple[object, ...]:
    return (row.clients, row.prompt, row.output, row.cut.gpus, row.name)


def _decision_checks(found: Predicted, kept: Flags) -> Iterator[Check]:
    """Yield the regret of choosing by ours and by the peer's predictions."""
    measured = _throughput(found.rows, found.measured)
    ours, peer = _throughput(found.rows, found.ours), _throughput(found.rows, found.peer)
    answered = kept & ~np.isnan(peer)
    all_rows = _regrets(found.rows, measured, ours, kept)
    both = _regrets(found.rows, measured, ours, answered)
    theirs = _regrets(found.rows, measured, peer, answered)
    if not all_rows.size:
        yield Check(name="deployments regret", value=None, note=f"no choice among {FEWEST}")
        return
    wanted = [("mean", float(all_rows.mean()), 4.0), ("median", float(np.median(all_rows)), 1.5)]
    note = "the peer answers none"
    if theirs.size:
        wanted.append(("mean, peer's rows", float(both.mean()), float(theirs.mean())))
        note = (
            f"on the {theirs.size} the peer answers: ours {both.mean():.2f}/{np.median(both):.2f}, "
            f"peer {theirs.mean():.2f}/{np.median(theirs):.2f}"
        )
    for name, value, limit in wanted:
        yield Check(
            name=f"deployments regret {name}",
            value=value,
            unit="%",
            limit=limit,
            ok=value <= limit,
            rows=all_rows.size,
            note=note,
        )


def _throughput(rows: Sequence[Deployed], times: dict[str, Floats]) -> Floats:
    """Return output tokens per second and GPU of a closed loop, from its mean times."""
    output = np.array([MEAN * row.output for row in rows])
    clients = np.array([row.clients for row in rows])
    gpus = np.array([row.cut.gpus for row in rows])
    answer_s = times[TTFT] + times[TPOT] * (output - 1.0)
    return np.asarray(clients * output / answer_s / gpus, np.float64)


def _regrets(rows: Sequence[Deployed], true: Floats, believed: Floats, which: Flags) -> Floats:
    """Return what each decision gives up, in percent."""
    choices: dict[tuple[object, ...], list[int]] = {}
    for i in np.flatnonzero(which).tolist():
        row = rows[i]
        load = (row.model, row.gpu, row.prompt, row.output, row.clients)
        choices.setdefault(load, []).append(i)
    regrets = [
        1.0 - true[members[int(np.argmax(believed[members]))]] / true[members].max()
        for members in choices.values()
        if len(members) >= FEWEST
    ]
    return 100.0 * np.array(regrets)


LEAST_COVER, MOST_COVER = 85.0, 94.0


def _coverage_checks(found: Predicted, kept: Flags) -> Iterator[Check]:
    """Yield how many measured times lie within the 90 % intervals of ours."""
    for metric in METRICS:
        inside = np.zeros(kept.size, bool)
        for i in np.flatnonzero(kept).tolist():
            row = found.rows[i]
            lo, hi = band_of(row.framework, row.group, metric.lower())
            ratio = found.measured[metric][i] / found.ours[metric][i]
            inside[i] = lo <= ratio <= hi
        cover = 100.0 * float(inside[kept].mean())
        yield Check(
            name=f"deployments {metric} within intervals",
            value=cover,
            unit="%",
            limit=LEAST_COVER,
            ok=LEAST_COVER <= cover <= MOST_COVER,
            rows=int(kept.sum()),
            note=f"asked: {LEAST_COVER:.0f} to {MOST_COVER:.0f}",
        )
