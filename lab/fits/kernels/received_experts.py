"""Fit experts after DeepEP's exchanges: a form for each of both kernels, without trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.fits.driver import Calibration, chosen
from lab.fits.kernels.kernel_calibration import entries, fit_plain
from lab.tables.operators.received_experts import DTYPE, GPUS, read_received_experts
from lab.tables.rows import Floats
from simulators.catalog.gpu import Gpu
from simulators.kernels.families.experts import ExpertSizes, expert_seconds


def fit_received_experts(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for gpu in chosen(only, GPUS):
        measured = read_received_experts(reference, gpu)
        done = [fit_plain(rows.kernel, rows, layer_seconds) for rows in measured]
        yield entries("received_experts", gpu, done)


def layer_seconds(
    products: tuple[ExpertSizes, ExpertSizes], gpu: Gpu, numbers: Mapping[str, float]
) -> Floats:
    """Return the seconds of both products of a layer by the formula."""
    up, down = (expert_seconds(sizes, DTYPE, gpu, numbers) for sizes in products)
    return up + down
