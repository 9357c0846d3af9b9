"""Fit experts after DeepEP's exchanges: a form for each of both kernels, without trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.fits.driver import Calibration, chosen
from lab.fits.kernels.kernel_calibration import entries, fit_plain
from lab.tables.operators.received_experts import GPUS, read_received_experts
from simulators.kernels.families.experts import layer_seconds


def fit_received_experts(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for gpu in chosen(only, GPUS):
        measured = read_received_experts(reference, gpu)
        done = [fit_plain(rows.kernel, rows, layer_seconds) for rows in measured]
        yield entries("received_experts", gpu, done)
