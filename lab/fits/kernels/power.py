"""Fit kernels' power to what GPUs' meters showed of kernels in loops, and predict such readings.

First the settled draw, from kernels long enough for the meter to settle: a formula whose numbers
transfer to other GPUs, then trees of shapes for the GPU itself. Then trees for what the meter
shows of all kernels, short ones included.

Loops of the measured tables aim at 0.3 s for kernels below 0.1 ms and a second above, but stop
after 3,000 launches; the meter is read ten times a second and shows a mean over the second before,
and a row holds the mean of what was read (ai-dynamo/aiconfigurator, `collector/helper.py`). So even
a second's loop shows in good part what the GPU did before: set-up, or the cases whose loops it
ran last. Readings of short kernels say little else. Trees carry the settled watts of `energy.py` to
what the meter shows, by shape and time. Only comparisons with such readings need this: bills follow
settled watts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, declared, rounded
from lab.fits.kernels.kernel_calibration import fit_correction, form, tree_table
from lab.fits.methods import grouped
from lab.tables.rows import Rows, is_host_timed
from lab.tables.tensor_kernels import meter_name, read_power_rows
from planning.calibrate.kernels import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.jit import Floats
from simulators.kernels.corrections import LEAF_STEP, Correction, corrected, correction_from
from simulators.kernels.energy import (
    PowerModel,
    format_of,
    measured_power,
    modelled_w,
    shape_features,
)
from simulators.kernels.price import flops, moved_bytes
from simulators.workload.operators import Attention, Gemm

SETTLED_S = 1e-4
"""Kernels at least this long are taken as settled. Products, launched by fives, then ran for about
a second, attention for 0.3 s: what is read of it still holds what ran before."""


def reading_w(
    correction: Correction, operator: Gemm | Attention, latency_s: Floats, watts: Floats
) -> Floats:
    """Return the meter's reading of a loop of launches whose settled draw is `watts`."""
    shape = latency_s.shape
    shown = corrected(correction, meter_features(operator, latency_s), watts.reshape(-1))
    return shown.reshape(shape)


def meter_of(gpu: Gpu, name: str) -> Correction | None:
    """Return the trees of a GPU for a meter such as `gemm_bf16` or `decode`; None without any."""
    table = (measured_power(gpu.name) or {}).get("meter", {}).get(name)
    return None if table is None else correction_from(table)


def meter_features(operator: Gemm | Attention, latency_s: Floats) -> Floats:
    """Return the features of the trees, one row each, also with the sign changed."""
    moved = moved_bytes(operator)
    columns = (latency_s, flops(operator) / latency_s, moved / latency_s, moved)
    flat = np.stack([np.broadcast_to(c, latency_s.shape).reshape(-1) for c in columns])
    return np.concatenate([flat, -flat, shape_features(operator, latency_s.shape)])


FORMATS, PHASES = ("bf16", "fp8", "fp8_block", "fp4"), ("prefill", "decode")
DRAW_ROWS, RIDGE = 1200, 100.0
"""Rows of each kernel and pair of formats, and the weight of the start, in rows; with more or less
ridge the other GPU is predicted worse."""

TREES, SHAPE_TREES, DEPTH = 120, 80, 4
LEAN = 1.0
"""Relative errors have equal costs, as a reading depends on the start of its loop."""


def fit_power(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    rows = read_power_rows(reference)
    for name in chosen(only, (part.gpu for part in rows)):
        parts = [part for part in rows if part.gpu == name]
        yield _fit_gpu(load_gpu(name), parts)


def fit_draw(parts: Sequence[Rows], gpu: Gpu) -> PowerModel:
    """Return the settled draw of a GPU, fitted to kernels long enough to settle."""
    settled = [part.drawn(DRAW_ROWS) for part in settled_parts(parts)]
    formats = {format_of(part.operator) for part in settled}
    numbers = form("power")
    kept = [name not in FORMATS or name in formats for name in numbers.start]
    names = [name for name in numbers.start if name not in FORMATS or name in formats]

    def model(found: Mapping[str, float]) -> Floats:
        draw = _draw(found)
        watts = [modelled_w(draw, part.operator, gpu, part.seconds) for part in settled]
        return np.concatenate(watts)

    found = fit_named(
        model,
        names,
        np.log([numbers.start[name] for name in names]),
        np.concatenate([part.watts for part in settled]),
        low=numbers.low[kept],
        high=numbers.high[kept],
        ridge=RIDGE,
    )
    return _draw(found)


def settled_parts(parts: Sequence[Rows]) -> list[Rows]:
    """Return rows of kernels long enough for the meter to settle, of parts that have some."""
    some = [part.where(part.seconds >= SETTLED_S) for part in parts if not is_host_timed(part)]
    return [part for part in some if len(part)]


def _fit_trees(
    parts: Sequence[Rows],
    draw: PowerModel,
    gpu: Gpu,
    features_of: Callable[[Rows], Floats],
    trees: int,
) -> Correction:
    """Return trees that map modelled watts to the readings of the meter."""
    watts = [modelled_w(draw, part.operator, gpu, part.seconds) for part in parts]
    features = np.concatenate([features_of(part) for part in parts], axis=-1)
    return fit_correction(
        features,
        np.concatenate(watts),
        np.concatenate([part.watts for part in parts]),
        alpha=1.0,
        trees=trees,
        depth=DEPTH,
        lean=LEAN,
    )


def _draw(numbers: Mapping[str, float]) -> PowerModel:
    return PowerModel(
        active_idle=numbers["active_idle"],
        memory=numbers["memory"],
        compute={name: numbers[name] for name in FORMATS if name in numbers},
        factor={name: numbers[name] for name in PHASES},
        limit=numbers["limit"],
    )


def _fit_gpu(gpu: Gpu, parts: Sequence[Rows]) -> Calibration:
    seen = [part.where(~part.held_out) for part in parts]
    formula = fit_draw(seen, gpu)
    shapes = {
        name: _fit_trees(
            some, formula, gpu, lambda p: shape_features(p.operator, p.seconds.shape), SHAPE_TREES
        )
        for name, some in grouped(settled_parts(seen), meter_name).items()
    }
    draw = replace(formula, shapes=shapes)
    meters, errors = {}, {}
    for name, some in grouped(parts, meter_name).items():
        fitted = [part.where(~part.held_out) for part in some]
        correction = _fit_trees(
            fitted, draw, gpu, lambda p: meter_features(p.operator, p.seconds), TREES
        )
        off = []
        for part in some:
            unseen = part.where(part.held_out)
            settled = modelled_w(draw, unseen.operator, gpu, unseen.seconds)
            read = reading_w(correction, unseen.operator, unseen.seconds, settled)
            off.append(np.abs(read / unseen.watts - 1.0))
        errors[name] = float(np.mean(np.concatenate(off)))
        meters[name] = {
            "held_out_mape": round(errors[name], 4),
            **tree_table(correction, leaf_step=LEAF_STEP),
        }
    return declared(
        "power",
        name=gpu.name,
        content={
            "name": gpu.name,
            "draw": rounded(
                {name: value for name, value in vars(draw).items() if name != "shapes"}, ".4g"
            ),
            "shapes": {
                name: tree_table(correction, leaf_step=1e-3, digits=3)
                for name, correction in shapes.items()
            },
            "meter": meters,
        },
        rows=sum(len(part) for part in seen),
        errors=list(errors.values()),
        provenance={"versions": {part.framework: part.version for part in parts}},
    )
