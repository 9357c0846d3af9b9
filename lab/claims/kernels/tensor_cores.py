"""Tensor-core products beside measured loops: matrices and GPUs that no fit saw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.kernels.frames import (
    as_shipped,
    kernel_rows,
    priced,
    shipped_price,
)
from lab.claims.predictions import together
from lab.fits.kernels.tensor_cores import IN_LAYERS, seconds_of
from lab.tables.kernels.auxiliary_kernels import GPUS as AUXILIARY_GPUS
from lab.tables.kernels.auxiliary_kernels import read_auxiliary_rows
from lab.tables.kernels.engine_layers import GPUS, read_chain_rows, read_layer_products
from lab.tables.kernels.tensor_cores import PRODUCERS, read_tensor_rows
from lab.tables.rows import BANDED, Rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.calibration_files import calibrations
from simulators.evidence.lookup import DEFAULT_FRAMEWORK
from simulators.kernels.levels import measured_rates
from simulators.kernels.price import roofline_s


def products(reference: Path) -> pl.DataFrame:
    """Return products whose matrices were held out, on GPUs with numbers of their own."""
    known = {gpu: measured_rates(gpu) for gpu in calibrations("tensor")}
    return together(
        as_shipped(part.where(part.held_out))
        for part in read_tensor_rows(reference, PRODUCERS)
        if part.held_out.any()
        and (part.framework, part.dtype) in known.get(load_gpu(part.gpu).name, {})
    )


def transfers(reference: Path, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Return the same as if only the GPU's data sheet and one other GPU were known.

    Args:
        reference: the folder of reference tables.
        pairs: the GPU whose numbers are used, and the one that is predicted.
    """
    frames = []
    parts = [p for p in read_tensor_rows(reference, PRODUCERS) if p.framework == DEFAULT_FRAMEWORK]
    for source, target in pairs:
        for part in parts:
            rates = measured_rates(source).get((part.framework, part.dtype))
            if part.gpu == target and rates is not None and part.held_out.any():
                rows, gpu = part.where(part.held_out), load_gpu(target)
                least_s = roofline_s(rows.operator, gpu)
                predicted_s = np.maximum(seconds_of(rows, rates, gpu), least_s)
                frames.append(kernel_rows(rows, predicted_s, source=source))
    return together(frames)


def in_layers(reference: Path) -> pl.DataFrame:
    """Return products and pointwise chains that were timed in the layers of an engine.

    Rows are held-out ones where a GPU was fitted to such layers, else all of them.
    """
    frames = []
    for gpu in GPUS:
        for part in read_layer_products(reference, gpu):
            rows = part.where(part.held_out) if gpu in IN_LAYERS else part
            frames.append(as_shipped(rows, name=f"{part.framework} {part.dtype} product in layers"))
        frames += [
            as_shipped(part.where(part.held_out), name=part.name)
            for part in read_chain_rows(reference, gpu)
        ]
    return together(frames)


def auxiliary(reference: Path) -> pl.DataFrame:
    """Return auxiliary kernels of calibrated engines whose shapes were held out."""
    frames = []
    for gpu in AUXILIARY_GPUS:
        by_kernel: dict[tuple[str, str], list[Rows]] = {}
        for part in read_auxiliary_rows(reference, gpu):
            rows = part.where(part.held_out)
            by_kernel.setdefault((part.framework, part.kernel), []).append(rows)
        for parts in by_kernel.values():
            frames += _calibrated([part for part in parts if len(part)])
    return together(frames)


def _calibrated(parts: Sequence[Rows]) -> list[pl.DataFrame]:
    """Return the rows of one kernel, unless some are transferred from another GPU."""
    answers = [shipped_price(part) for part in parts]
    if not all(answer.calibrated for answer in answers):
        return []
    return [
        priced(part, answer, is_unseen=part.bucket >= BANDED)
        for part, answer in zip(parts, answers, strict=True)
    ]
