"""Fit kernels' power to what GPUs' meters showed of kernels in loops, and predict such readings.

docs/explanation/kernels.md describes the fit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, declared, rounded, settings
from lab.fits.kernels.kernel_calibration import fit_correction, form, tree_table
from lab.fits.methods import grouped
from lab.tables.kernels import FACTS, FOLDER, TENSOR, existing, kernel_rows, product_rows
from lab.tables.rows import Rows, by_labels, is_host_timed, mape
from planning.calibrate.kernels import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.jit import Floats
from simulators.kernels import energy
from simulators.kernels.corrections import LEAF_STEP, Correction, corrected, correction_from
from simulators.kernels.energy import PowerModel, modelled_w, shape_features
from simulators.kernels.price import flops, moved_bytes
from simulators.workload.operators import Attention, Gemm

CONFIG = settings(__file__)

POWER = FACTS["power"]


@functools.lru_cache(maxsize=1)
def read_power_rows(reference: Path) -> tuple[Rows, ...]:
    """Return the metered rows of each GPU, kernel and pair of formats; empty without tables."""
    found = []
    for kernel, name in POWER.tables.items():
        is_product = kernel == "gemm"
        columns = ("gemm_dtype",) if is_product else ("attn_dtype", "kv_cache_dtype")
        known = TENSOR.kinds if is_product else POWER.dtypes
        for table in existing(reference / FOLDER / f"{name}.parquet"):
            for key, rows in by_labels(table, "gpu", "framework", "version", *columns):
                gpu, framework, _, *formats = key
                if gpu in TENSOR.gpus and all(format_ in known for format_ in formats):
                    of = (TENSOR.gpus[gpu], framework, "_".join(known[one] for one in formats))
                    found.append(
                        product_rows(rows, *of) if is_product else kernel_rows(rows, kernel, *of)
                    )
    return tuple(found)


def meter_name(rows: Rows) -> str:
    """Return the name of a power meter: of a kind of product, or of attention in all formats."""
    return f"gemm_{rows.dtype}" if rows.kernel == "gemm" else rows.kernel


def reading_w(
    correction: Correction, operator: Gemm | Attention, latency_s: Floats, watts: Floats
) -> Floats:
    """Return the meter's reading of a loop of launches whose settled draw is `watts`."""
    shape = latency_s.shape
    shown = corrected(correction, meter_features(operator, latency_s), watts.reshape(-1))
    return shown.reshape(shape)


def meter_of(gpu: Gpu, name: str) -> Correction | None:
    """Return the trees of a GPU for a meter such as `gemm_bf16` or `decode`; None without any."""
    table = (energy.measured_power(gpu.name) or {}).get("meter", {}).get(name)
    return None if table is None else correction_from(table)


def meter_features(operator: Gemm | Attention, latency_s: Floats) -> Floats:
    """Return the features of the trees, one row each, also with the sign changed."""
    moved = moved_bytes(operator)
    columns = (latency_s, flops(operator) / latency_s, moved / latency_s, moved)
    flat = np.stack([np.broadcast_to(c, latency_s.shape).reshape(-1) for c in columns])
    return np.concatenate([flat, -flat, shape_features(operator, latency_s.shape)])


FORMATS, PHASES = ("bf16", "fp8", "fp8_block", "fp4"), ("prefill", "decode")


def fit_power(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    rows = read_power_rows(reference)
    for name in chosen(only, (part.gpu for part in rows)):
        parts = [part for part in rows if part.gpu == name]
        yield _fit_gpu(load_gpu(name), parts)


def fit_draw(parts: Sequence[Rows], gpu: Gpu) -> PowerModel:
    """Return the settled draw of a GPU, fitted to kernels long enough to settle."""
    settled = [part.drawn(CONFIG.draw_rows) for part in _settled_parts(parts)]
    formats = {energy.format_of(part.operator) for part in settled}
    numbers = form("power")
    kept = [name not in FORMATS or name in formats for name in numbers.start]
    names = [name for name in numbers.start if name not in FORMATS or name in formats]

    found = fit_named(
        lambda numbers: _modelled_w(_draw(numbers), settled, gpu),
        names,
        np.log([numbers.start[name] for name in names]),
        np.concatenate([part.watts for part in settled]),
        low=numbers.low[kept],
        high=numbers.high[kept],
        ridge=CONFIG.ridge,
    )
    return _draw(found)


def _settled_parts(parts: Sequence[Rows]) -> list[Rows]:
    some = [
        part.where(part.seconds >= CONFIG.settled_s) for part in parts if not is_host_timed(part)
    ]
    return [part for part in some if len(part)]


def _fit_trees(
    parts: Sequence[Rows],
    draw: PowerModel,
    gpu: Gpu,
    features_of: Callable[[Rows], Floats],
    trees: int,
) -> Correction:
    features = np.concatenate([features_of(part) for part in parts], axis=-1)
    modelled, metered = _modelled_w(draw, parts, gpu), np.concatenate([p.watts for p in parts])
    return fit_correction(features, modelled, metered, trees=trees, **CONFIG.settings)


def _modelled_w(draw: PowerModel, parts: Sequence[Rows], gpu: Gpu) -> Floats:
    return np.concatenate([modelled_w(draw, p.operator, gpu, p.seconds) for p in parts])


def _draw(numbers: Mapping[str, float]) -> PowerModel:
    return PowerModel(
        active_idle=numbers["active_idle"],
        memory=numbers["memory"],
        limit=numbers["limit"],
        compute={name: numbers[name] for name in FORMATS if name in numbers},
        factor={name: numbers[name] for name in PHASES},
    )


def _fit_gpu(gpu: Gpu, parts: Sequence[Rows]) -> Calibration:
    seen = [part.where(~part.held_out) for part in parts]
    formula = fit_draw(seen, gpu)
    shapes = {
        name: _fit_trees(
            some,
            formula,
            gpu,
            lambda p: shape_features(p.operator, p.seconds.shape),
            CONFIG.shape_trees,
        )
        for name, some in grouped(_settled_parts(seen), meter_name).items()
    }
    draw = replace(formula, shapes=shapes)
    meters, errors = {}, {}
    for name, some in grouped(parts, meter_name).items():
        fitted = [part.where(~part.held_out) for part in some]
        correction = _fit_trees(
            fitted, draw, gpu, lambda p: meter_features(p.operator, p.seconds), CONFIG.trees
        )
        unseen = [part.where(part.held_out) for part in some]
        settled = [modelled_w(draw, part.operator, gpu, part.seconds) for part in unseen]
        shown = [
            reading_w(correction, part.operator, part.seconds, watts)
            for part, watts in zip(unseen, settled, strict=True)
        ]
        errors[name] = mape(np.concatenate(shown), np.concatenate([p.watts for p in unseen]))
        meters[name] = {
            "held_out_mape": round(errors[name], 4),
            **tree_table(correction, leaf_step=LEAF_STEP),
        }
    return declared(
        "power",
        name=gpu.name,
        content={
            "name": gpu.name,
            "draw": rounded({n: value for n, value in vars(draw).items() if n != "shapes"}, ".4g"),
            "shapes": {n: tree_table(one, leaf_step=1e-3, digits=3) for n, one in shapes.items()},
            "meter": meters,
        },
        rows=sum(len(part) for part in seen),
        errors=list(errors.values()),
        provenance={"versions": {part.framework: part.version for part in parts}},
    )
