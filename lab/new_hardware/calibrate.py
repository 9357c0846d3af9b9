"""A handful of measured rows make a board of a data sheet, or a device of a phone.

What the rows hold decides: columns `network` and `latency_s` are of a device at the edge, all
others those of the profiler. Errors are of rows left out in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lab.fits.driver import write_calibration
from lab.fits.kernels import fp32_kernels as fit
from lab.fits.methods.few_shot import adapt, prior
from lab.fits.methods.fp32_forms import cross_validated_s, fit_few
from lab.new_hardware.learning import Gain
from lab.new_hardware.own_rows import own_rows
from lab.tables.rows import Floats, Rows, mape, read_table
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.errors import UserError
from simulators.edge.architectures import features
from simulators.edge.device import FORMAT, SUFFIX, Weights
from simulators.evidence.boards import identity_of
from simulators.kernels.levels import measured_profile, scalar_files, zero_shot_profile
from simulators.kernels.price import call_seconds

NETWORK, LATENCY = "network", "latency_s"
FEWEST = 4
"""Rows of a kind below which nothing can be left out."""

FOLDS = 5


def calibrate(name: str, measured: Path, space: str) -> tuple[list[Gain], Path | None]:
    """Return errors before and after of each kind of row, and the file that was written.

    Of a GPU the classes of operators are written that its rows improve; others stay as they are
    known without them. Where there are none, nothing is written.

    Raises:
        UserError: the file cannot be read or has too few rows; there is no such data sheet.
    """
    table = read_table(measured, ())
    if {NETWORK, LATENCY} <= {*table.column_names}:
        return _device(name, table, measured, space)
    return _gpu(load_gpu(name), measured)


def _gpu(gpu: Gpu, measured: Path) -> tuple[list[Gain], Path | None]:
    """Fit a GPU's board to its rows, and say what each class of operators gains.

    Raises:
        UserError: it is no GPU, or there are too few rows.
    """
    if not gpu.validated:
        raise UserError(
            f"{gpu.name} is priced by its data sheet alone (validated = false); no rows change that"
        )
    gains = [_gain(part, gpu) for part in own_rows(measured, gpu.name) if len(part) >= FEWEST]
    if not gains:
        raise UserError(f"{measured}: no fp32 operator has {FEWEST} rows; some must be left out")
    better = [gain.name for gain in gains if gain.is_better]
    if not better:
        return gains, None
    file = own_file(gpu)
    for calibration in fit.fit_measured(measured, gpu.name, better):
        write_calibration(file, calibration.text("fp32_kernels"))
    return gains, file


def own_file(gpu: Gpu) -> Path:
    """Return where a GPU's calibration by rows of one's own is kept."""
    return fit.OWN / f"{gpu.name}.toml"


def _gain(part: Rows, gpu: Gpu) -> Gain:
    """Return what a class of operators gains, on shapes left out.

    What is known before is without what an earlier call wrote: it has seen the rows.
    """
    files = [
        file for file in scalar_files(gpu.name, identity_of(gpu).name) if file != own_file(gpu)
    ]
    profile = measured_profile(identity_of(gpu), files)
    blank = zero_shot_profile(fit.by_its_name(gpu))
    fitted_s = partial(cross_validated_s, gpu=gpu, under=blank, fit=fit_few, folds=FOLDS)
    half = part.where(np.arange(len(part)) % 2 == 0)
    before = mape(call_seconds(part.operator, gpu, profile), part.seconds)
    return Gain(part.kernel, len(part), before, _error(half, fitted_s), _error(part, fitted_s))


def _error(rows: Rows, fitted_s: Callable[[Rows], Floats]) -> float:
    said = fitted_s(rows)
    there = np.isfinite(said)
    return mape(said[there], rows.seconds[there])


def _device(name: str, table: pa.Table, measured: Path, space: str) -> tuple[list[Gain], Path]:
    """Adapt what is known of devices to one, and write it."""
    texts = [str(text) for text in table[NETWORK].to_pylist()]
    seconds = np.array([_latency(value, measured) for value in table[LATENCY].to_pylist()])
    if len(texts) < FEWEST:
        raise UserError(f"{measured} has {len(texts)} networks; {FEWEST} are needed, 10 are better")
    rows, given = features(space, texts), prior(space)
    weights = adapt(given, rows, seconds)
    file = Path(name if name.endswith(SUFFIX) else f"{name}{SUFFIX}")
    about = {"measured": measured.name, "rows": len(texts)}
    try:
        file.write_text(text_of(weights, space, about), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    order = np.arange(len(texts))
    errors = [
        float(np.mean(list(_left_out(rows, seconds, space, order[::step], blind=blind))))
        for step, blind in ((1, True), (2, False), (1, False))
    ]
    return [Gain(f"networks of {space}", len(texts), *errors)], file


def text_of(weights: Weights, space: str, about: Mapping[str, Any]) -> str:
    """Return the content of a device's file.

    Args:
        weights: of the device.
        space: the search space its networks are of.
        about: what it rests on, such as how many rows of which file.
    """
    found = {
        "format": FORMAT,
        "search_space": space,
        "about": dict(about),
        "unit_s": weights.unit_s,
        "mean": weights.mean.tolist(),
        "covariance": weights.covariance.tolist(),
        "noise": weights.noise,
    }
    return json.dumps(found, indent=1) + "\n"


def _latency(value: object, measured: Path) -> float:
    """Return a cell of the latencies as seconds.

    Raises:
        UserError: it is no number above zero.
    """
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = np.nan
    if not 0.0 < seconds < np.inf:
        raise UserError(f"{measured}: column '{LATENCY}' holds {value!r}; write seconds above zero")
    return seconds


def _left_out(
    rows: Floats, seconds: Floats, space: str, some: np.ndarray, *, blind: bool
) -> Iterator[float]:
    """Yield the error of each network by the others; if blind, by their mean and other devices."""
    given = prior(space)
    for left in some.tolist():
        others = some[some != left]
        if blind:
            relative = 1.0 + given.design(rows)[:, 1:] @ given.mean
            said = seconds[others].mean() / relative[others].mean() * relative[left]
        else:
            said = adapt(given, rows[others], seconds[others]).seconds(rows[[left]])[0][0]
        yield abs(float(said) / seconds[left] - 1.0)
