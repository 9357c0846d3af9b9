"""Fit the factors of devices by data sheet to MLPerf results of one model.

A device's result is the best of its submissions in a round. Rounds differ by a year of software:
results are restated as of the last round by the devices that two rounds have in common.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from scipy.optimize import least_squares

from lab.fits.driver import Calibration, declared, settings
from lab.tables.rows import read_frame
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.codesign.device import DeviceFactors, FullLoad, device_of, steady
from simulators.core.jit import Floats

CONFIG = settings(__file__)
ROUNDS = {
    "v4.1": "serving_measured/mlperf_inference_v4_1_llm.parquet",
    "v5.1": "mlperf/inference_v5_1.parquet",
    "v6.0": "mlperf/inference_v6_0.parquet",
}
BENCHMARK, OFFLINE, POWER_CAP = "llama2-70b-99", "offline", "Power Cap"
NAMES = ("compute", "fp4", "power", "memory", "amd")


@functools.cache
def measured(reference: Path) -> Mapping[str, float]:
    """Return output tokens per second and device, as of the last round."""
    rounds = [_round(reference / table) for table in ROUNDS.values()]
    found: dict[str, list[float]] = {}
    for number, results in enumerate(rounds):
        gain = 1.0
        for earlier, later in zip(rounds[number:], rounds[number + 1 :], strict=False):
            common = [np.log(later[name] / earlier[name]) for name in earlier if name in later]
            gain *= float(np.exp(np.mean(common)))
        for name, rate in results.items():
            found.setdefault(name, []).append(rate * gain)
    order = [name for name in CONFIG.devices if name in found]
    return {name: float(np.exp(np.mean(np.log(found[name])))) for name in order}


def _round(table: Path) -> dict[str, float]:
    """Return the best tokens per second and device of each device in a table of results."""
    frame = read_frame(table)
    column = "gpu" if "gpu" in frame.columns else "accelerator"
    number = "num_gpus" if "num_gpus" in frame.columns else "n_accelerators"
    # Open submissions count if they ran the benchmark's own model.
    is_whole = pl.col("division").str.to_lowercase() == "closed"
    if "used_model" in frame.columns:
        is_whole |= pl.col("used_model") == BENCHMARK
    rows = frame.filter(
        (pl.col("model") == BENCHMARK)
        & (pl.col("scenario").str.to_lowercase() == OFFLINE)
        & is_whole
        & ~pl.col(column).str.contains(POWER_CAP)
    ).with_columns(rate=pl.col("tokens_per_s") / pl.col(number))
    found = {}
    for name, text in CONFIG.devices.items():
        of_device = rows.filter(pl.col(column).str.contains(rf"(^|[^G]){text}"))
        if of_device.height and (best := of_device["rate"].drop_nulls().max()) is not None:
            found[name] = float(best)  # type: ignore[arg-type]
    return found


def predicted(name: str, factors: DeviceFactors) -> float:
    """Return tokens per second of a device of the catalog by its data sheet."""
    load = FullLoad(CONFIG.prompt, CONFIG.output)
    return steady(device_of(load_gpu(name)), load_model(CONFIG.model), load, factors).tokens_per_s


def fitted(known: Mapping[str, float]) -> DeviceFactors:
    """Return the factors of some devices, given their tokens per second."""
    start = np.log([CONFIG.start[name] for name in NAMES])
    deviation = np.array([CONFIG.deviation[name] for name in NAMES])

    def residuals(x: Floats) -> Floats:
        factors = DeviceFactors(*np.exp(x).tolist())
        errors = [np.log(predicted(name, factors) / rate) for name, rate in known.items()]
        return np.array([*(e / CONFIG.run for e in errors), *((x - start) / deviation)])

    found = least_squares(residuals, start, diff_step=1e-3).x
    return DeviceFactors(*np.exp(found).tolist())


@functools.cache
def left_out(reference: Path) -> Mapping[str, float]:
    """Return tokens per second of every device by the factors of all others."""
    known = measured(reference)
    return {
        name: predicted(name, fitted({n: v for n, v in known.items() if n != name}))
        for name in known
    }


def log_errors(reference: Path) -> Mapping[str, float]:
    """Return the logarithm of predicted over measured of every device that is left out."""
    known = measured(reference)
    return {n: float(np.log(v / known[n])) for n, v in left_out(reference).items()}


def fit_devices(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the factors of all devices, with the spread of devices that are left out."""
    factors, errors = fitted(measured(reference)), np.array(list(log_errors(reference).values()))
    content = {name: getattr(factors, name) for name in NAMES}
    yield declared(
        "devices",
        tables=list(ROUNDS.values()),
        content={"devices": content | {"spread": float(np.sqrt(np.mean(errors**2)))}},
        rows=len(errors),
        errors=np.exp(errors) - 1.0,
    )
