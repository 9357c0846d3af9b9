"""Fit by how much experts were slower in older releases of engines, to results of their time.

Runtimes are fitted to deployments of 2026. Results printed in documentation are up to a year older,
when engines ran experts by kernels tuned for few models. So one factor multiplies the pace of
experts of a batch; single tokens take what they take today, in those results too.
vLLM's and SGLang's experts were of one origin (`fused_moe`, in Triton) and have one factor.
TensorRT-LLM has none: its five results are four times as slow as ours, and no factor mends both of
their models.

The factor makes the mean |log(predicted / measured)| of tokens a second and of times per token
least; models count as the square root of their rows, and each model is left out in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.left_out import older_shelf
from lab.tables.result_blocks import BLOCKS, OLDER, Block, blocks
from simulators.catalog.model import load_model
from simulators.composition.replica import NOTHING
from simulators.core.errors import Infeasible
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.core.jit import Floats
from simulators.serving.simulator import simulate

Strings = NDArray[np.str_]

FOLDER = PACKAGE / RUNTIMES.path
SPLIT = "each model in turn"

EXPERTS = "experts"

TRIED = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
"""Factors that are simulated; between them errors are interpolated."""

STEPS = np.arange(TRIED[0], TRIED[-1] + 0.01, 0.05)


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the older releases that are asked for, and the same without each model."""
    told, _ = blocks(reference)
    older = {name: like for like, (name, _) in OLDER.items()}
    rows, error = _errors([b for b in told if b.point.runtime in older and _is_plain(b)])
    models = np.array([row.point.model for row in rows])
    without = {
        model: _best(error[:, models != model], models[models != model])
        for model in np.unique(models).tolist()
    }
    held_out = [_at(error[:, [i]], without[m])[0, 0] for i, m in enumerate(models.tolist())]
    factor = _best(error, models)
    for name, like in older.items():
        whole = calibration(
            name, hashes(reference, [BLOCKS]), rows=len(rows), split=SPLIT,
            held_out=np.expm1(np.array(held_out)),
            lines=["", "[runtime]", f'like = "{like}"', *_lines(factor)],
        )  # fmt: skip
        tail = [line for model, one in without.items() for line in _lines(one, model)]
        if not only or name in only:
            yield whole
            yield replace(whole, folder=LEFT_OUT / "runtimes", lines=tail)


def _is_plain(block: Block) -> bool:
    """Say whether a result is of experts, and of no drafts, of which nobody knows how many hold."""
    return load_model(block.point.model).experts > 0 and block.point.speculation == NOTHING


def _errors(told: Sequence[Block]) -> tuple[list[Block], Floats]:
    """Return the results that can be simulated, and log(predicted / measured) by factor and row.

    The last axis is tokens a second and the time per token.
    """
    rows, errors = [], []
    for block in told:
        try:
            errors.append([_log_ratios(block, factor) for factor in TRIED])
        except Infeasible:
            continue
        rows.append(block)
    return rows, np.array(errors).transpose(1, 0, 2)


def _log_ratios(block: Block, factor: float) -> tuple[float, float]:
    """Return the errors of a result under today's release with slower experts of a batch."""
    shelf = older_shelf(block.framework, block.group, {EXPERTS: factor})
    metrics = simulate(replace(block.point, runtime=block.framework), shelf)
    assert metrics.tpot_mean_s is not None
    rates = metrics.tokens_per_s / block.tokens_per_s, metrics.tpot_mean_s / block.tpot_s
    return float(np.log(rates[0])), float(np.log(rates[1]))


def _best(error: Floats, models: Strings) -> float:
    """Return the factor of the least mean error."""
    _, index, count = np.unique(models, return_inverse=True, return_counts=True)
    weight = count[index] ** -0.5
    size = [float(weight @ np.abs(_at(error, step)).mean(axis=1)) for step in STEPS.tolist()]
    return float(STEPS[int(np.argmin(size))])


def _at(error: Floats, factor: float) -> Floats:
    """Return the errors of rows under a factor."""
    high = int(np.clip(np.searchsorted(TRIED, factor), 1, len(TRIED) - 1))
    share = (factor - TRIED[high - 1]) / (TRIED[high] - TRIED[high - 1])
    found: Floats = error[high - 1] + share * (error[high] - error[high - 1])
    return found


def _lines(factor: float, model: str = "") -> list[str]:
    """Return a factor as TOML, of all rows or without a model's."""
    prefix = f'without."{model}".' if model else ""
    return table_lines(f"{prefix}batch_times", {EXPERTS: factor}, ".4g")
