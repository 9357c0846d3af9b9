"""Errors of whole models that are not decoders, and one factor for each group of families.

A group is its families in one phase, number of bits and kind of runtime. The factor is the median
ratio of measured to predicted seconds, each model with equal weight; it is kept if it lowers the
median error of models that it was not fitted to. The interval has the quantiles of those errors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.fits.driver import Calibration, declared, rounded, settings
from lab.fits.forward_passes import fit_without, priced_cases
from lab.fits.methods import grouped, leave_one_out, quantile
from lab.tables.whole_models import FACTS, FILE, WholeModel, read_whole_models
from simulators.evidence.intervals import COVERED
from simulators.graphs.price import price_pass
from simulators.workload.precision import BYTES

CONFIG = settings(__file__)
EIGHT_BITS = 8


@dataclass(frozen=True)
class JudgedModel:
    """A measured pass and its prediction without a factor of its group."""

    group: str
    phase: str
    bits: int
    is_eager: bool
    model: str
    gpu: str
    predicted_s: float
    measured_s: float

    @property
    def key(self) -> tuple[str, str, int, bool]:
        """What one factor applies to."""
        return self.group, self.phase, self.bits, self.is_eager

    @property
    def ratio(self) -> float:
        """Measured over predicted seconds."""
        return self.measured_s / self.predicted_s


def fit_whole_models(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the groups of families: factor, interval, rows, models, GPUs and median errors."""
    rows = [row for row in judged_models(reference) if row.group in FACTS.groups]
    found = {_name(key): _group(mine) for key, mine in grouped(rows, lambda r: r.key).items()}
    errors = [error for entry in found.values() for error in entry.pop("errors")]
    yield declared(
        "whole_models",
        tables=("gpu_models/labels.parquet", FILE),
        content={"whole_models": rounded(found, ".3g")},
        rows=len(rows),
        errors=errors,
        provenance={"versions": {"framework": "by source: lab/tables/whole_models.toml"}},
    )


def judged_models(reference: Path) -> list[JudgedModel]:
    """Return all measured whole models with predictions without a factor of their group."""
    return [*map(judged, read_whole_models()), *fp32_rows(reference)]


def judged(row: WholeModel) -> JudgedModel:
    """Return a published figure with the prediction of kernels alone."""
    whole = price_pass(row.job, by_group=False)
    return JudgedModel(
        group=row.group,
        phase="inference",
        bits=round(EIGHT_BITS * BYTES[row.dtype]),
        is_eager=row.is_eager,
        model=row.model,
        gpu=row.gpu,
        predicted_s=whole.latency_s * row.part_of(whole),
        measured_s=row.measured_s,
    )


def fp32_rows(reference: Path) -> Iterator[JudgedModel]:
    """Yield fp32 transformers on one GPU; the framework's constants are fitted without each."""
    rows = priced_cases(reference)
    without = functools.cache(functools.partial(fit_without, rows))
    for row in rows:
        case = row.case
        yield JudgedModel(
            group=CONFIG.fp32_group,
            phase="training" if case.is_training else "inference",
            bits=32,
            is_eager=True,
            model=case.model,
            gpu=case.gpu.name,
            predicted_s=row.total_s(without(case.graph_name)),
            measured_s=case.total_s,
        )


def factor_of(rows: Sequence[JudgedModel]) -> float:
    """Return the median ratio of measured to predicted seconds, each model with equal weight."""
    models = [row.model for row in rows]
    return float(quantile([row.ratio for row in rows], 0.5, models)) if rows else 1.0


def median_error(rows: Sequence[JudgedModel], factors: Sequence[float]) -> float:
    """Return the median of the absolute relative errors, each model with equal weight."""
    off = [abs(f / row.ratio - 1.0) for row, f in zip(rows, factors, strict=True)]
    return float(quantile(off, 0.5, [row.model for row in rows]))


def held_out(rows: Sequence[JudgedModel], name: str) -> tuple[list[JudgedModel], list[float]]:
    """Return rows with the factor fitted to all other models or GPUs, by the attribute's name."""
    kept: list[JudgedModel] = []
    factors: list[float] = []
    for inside, factor in leave_one_out(rows, lambda row: getattr(row, name), factor_of):
        kept += inside
        factors += [factor] * len(inside)
    return kept, factors


def is_factored(rows: Sequence[JudgedModel]) -> bool:
    """Return whether a factor lowers the median error of models that it was not fitted to."""
    return median_error(*held_out(rows, "model")) < median_error(rows, [1.0] * len(rows))


def _group(rows: Sequence[JudgedModel]) -> dict[str, Any]:
    """Return the entry of one group, with the errors of its held-out rows under `errors`."""
    kept, factors = held_out(rows, "model")
    factor = factor_of(rows)
    if not is_factored(rows):
        kept, factors, factor = list(rows), [1.0] * len(rows), 1.0
    median = median_error(kept, factors)
    others, other_factors = held_out(rows, "gpu")
    gpus = sorted({row.gpu for row in rows})
    models = sorted({row.model for row in rows})
    ratios = [row.ratio / f for row, f in zip(kept, factors, strict=True)]
    lo, hi = quantile(ratios, COVERED)
    entry = {
        "families": FACTS.groups[rows[0].group],
        "phase": rows[0].phase,
        "bits": rows[0].bits,
        "eager": rows[0].is_eager,
        "gpus": gpus,
        "models": models,
        "rows": len(rows),
        "factor": factor,
        "lo": float(lo),
        "hi": float(hi),
        "median_error": median,
        "is_known": len(models) >= CONFIG.models and median <= CONFIG.median,
        "errors": [1.0 / ratio - 1.0 for ratio in ratios],
    }
    if len(gpus) > 1:
        entry["median_error_other_gpu"] = (
            median_error(others, other_factors) if factor != 1.0 else median
        )
    return entry


def _name(key: tuple[str, str, int, bool]) -> str:
    group, phase, bits, is_eager = key
    return f"{group}_{phase}_{bits}_{'eager' if is_eager else 'compiled'}"
