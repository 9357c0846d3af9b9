"""Fit attention and expert kernels to measured tables: `python -m simulators.kernels.fit_fused`.

First the few numbers of the form, then the trees, on half of all shapes; errors and the 90 %
interval come from the other half. One file per GPU is written to `calibration/fused`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.errors import UserError
from simulators.kernels.attention import attention_bytes, fitted_seconds
from simulators.kernels.bending import bend_lines, fit_bend
from simulators.kernels.frameworks import FOLDER, Entry
from simulators.kernels.fused import (
    FORMS,
    PARTS,
    attention_features,
    decode_seconds,
    expert_features,
    expert_seconds,
    prefill_seconds,
)
from simulators.kernels.grouped_gemm import fitted_expert_seconds
from simulators.kernels.least_squares import fit_log
from simulators.kernels.measured_fused import FOLDER as MEASURED
from simulators.kernels.measured_fused import (
    GPUS,
    TABLES,
    Measured,
    attention_of,
    products_of,
    read_measured,
)

Floats = NDArray[np.float64]

FORM_ROWS, TREE_ROWS = 3000, 8000
"""Rows a fit looks at, drawn evenly; more of them say nothing new."""

ALPHA, TREES, DEPTH = 0.5, 64, 4
"""Trees add nothing beyond: laws, not their number, bound the error."""

RIDGE = 0.1
REACH = 4.0
"""No number leaves where it started by more than a factor of 55."""

COVERED = (0.05, 0.95)

SHIPPED = ("vllm", "trtllm")
"""Calibrations stay small: the third framework's kernels are fitted where these have no table."""


@dataclass(frozen=True)
class Fitted:
    """One kernel's entry and what it rests on."""

    rows: Measured
    entry: Entry
    error: float  # mean absolute, of held-out rows


def main() -> None:
    """Fit the GPUs named on the command line, or all."""
    reference = reference_folder()
    if reference is None:
        raise UserError("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    for gpu in sys.argv[1:] or GPUS:
        fit_gpu(reference, gpu)


def fit_gpu(reference: Path, gpu: str) -> None:
    """Write the calibration of one GPU's fused kernels."""
    done = []
    for kernel in TABLES:
        found = [r for r in read_measured(reference, gpu, kernel) if r.spread == "balanced"]
        shipped = [rows for rows in found if rows.framework in SHIPPED]
        done += [fit_kernel(rows) for rows in shipped or found]
    for fitted in done:
        print(f"{gpu} {fitted.rows.name} {100.0 * fitted.error:.1f} %", flush=True)
    if done:
        write_calibration(FOLDER / f"{gpu}.toml", _text(reference, gpu, done))


def fit_kernel(rows: Measured) -> Fitted:
    """Return the entry of one kernel, fitted to half of its shapes."""
    seen, unseen = rows.where(~rows.held_out), rows.where(rows.held_out)
    gpu = load_gpu(rows.gpu)
    numbers = _fit_form(_thinned(seen, FORM_ROWS), gpu)
    plain = Entry(rows.framework, numbers, None, True, 0.5, 2.0)
    chosen = _thinned(seen, TREE_ROWS)
    features, seconds, target = _stacked(chosen, gpu, plain)
    bend = fit_bend(features, seconds, target, alpha=ALPHA, trees=TREES, depth=DEPTH)
    bent = Entry(rows.framework, numbers, bend, True, 0.5, 2.0)
    ratio = unseen.seconds / predicted_s(unseen, gpu, bent)
    lo, hi = np.quantile(ratio, COVERED)
    error = float(np.mean(np.abs(1.0 / ratio - 1.0)))
    return Fitted(
        rows,
        Entry(rows.framework, numbers, bend, True, min(float(lo), 1.0), max(float(hi), 1.0)),
        error,
    )


def predicted_s(rows: Measured, gpu: Gpu, entry: Entry) -> Floats:
    """Return what an entry says of measured rows: of experts, both products together."""
    if rows.kernel != "experts":
        return fitted_seconds(attention_of(rows), gpu, entry)
    parts = [
        fitted_expert_seconds(sizes, experts, rows.dtypes, gpu, entry)
        for sizes, experts in products_of(rows)
    ]
    return np.asarray(parts[0] + parts[1], np.float64)


def _fit_form(rows: Measured, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the form alone."""
    form = FORMS[rows.kernel.removeprefix("mla_")]
    names = list(form)
    start = np.log([form[name] for name in names])
    high = np.array([0.0 if n in PARTS else x + REACH for n, x in zip(names, start, strict=True)])
    seconds = _form_of(rows, gpu)
    fitted = fit_log(
        lambda p: seconds(dict(zip(names, np.exp(p).tolist(), strict=True))),
        start,
        rows.seconds,
        weights=np.ones(rows.seconds.size),
        ridge=np.full(start.size, RIDGE),
        bounds=(start - REACH, high),
    )
    return dict(zip(names, np.exp(fitted).tolist(), strict=True))


def _form_of(rows: Measured, gpu: Gpu) -> Callable[[dict[str, float]], Floats]:
    """Return the uncorrected seconds as a function of the form's numbers."""
    if rows.kernel == "experts":
        products = [sizes for sizes, _ in products_of(rows)]
        return lambda numbers: np.asarray(
            sum(expert_seconds(sizes, rows.dtypes, gpu, numbers) for sizes in products)
        )
    attention = attention_of(rows)
    moved_bytes = attention_bytes(attention)
    form = decode_seconds if attention.phase == "decode" else prefill_seconds
    return lambda numbers: form(attention, gpu, numbers, moved_bytes)


def _stacked(rows: Measured, gpu: Gpu, plain: Entry) -> tuple[Floats, Floats, Floats]:
    """Return features, formula and target; a layer's time is shared by its products as computed."""
    if rows.kernel != "experts":
        seconds = predicted_s(rows, gpu, plain)
        return attention_features(attention_of(rows), seconds.shape), seconds, rows.seconds
    miss = rows.seconds / predicted_s(rows, gpu, plain)
    products = products_of(rows)
    each = [fitted_expert_seconds(s, e, rows.dtypes, gpu, plain) for s, e in products]
    features = np.concatenate([expert_features(s, e) for s, e in products], axis=1)
    return features, np.concatenate(each), np.concatenate([part * miss for part in each])


def _thinned(rows: Measured, count: int) -> Measured:
    size = rows.seconds.size
    return rows.where(np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)))


def _text(reference: Path, gpu: str, done: list[Fitted]) -> str:
    """Return the calibration file of one GPU."""
    tables = dict.fromkeys(f"{MEASURED}/{TABLES[fitted.rows.kernel]}.parquet" for fitted in done)
    measured = ", ".join(f'"{table}"' for table in tables)
    hashes = ", ".join(f'"{sha256_of(reference / table)}"' for table in tables)
    lines = [
        f"# Written by `python -m simulators.kernels.fit_fused` for {gpu}.",
        "# To change a number, change the fit.",
        "[provenance]",
        f"measured = [{measured}]",
        f"sha256 = [{hashes}]",
        f"rows = {sum(fitted.rows.seconds.size for fitted in done)}",
        'split = "half of the shapes, by a hash of the shape; errors are of the other half"',
        f"held_out_mape = {np.mean([fitted.error for fitted in done]):.4f}",
    ]
    for fitted in done:
        name, entry = fitted.rows.name, fitted.entry
        numbers = ", ".join(f"{key} = {value:.5g}" for key, value in entry.numbers.items())
        lines += ["", f'[entry."{name}"]', f"numbers = {{ {numbers} }}"]
        lines += [f"held_out_mape = {fitted.error:.4f}", f"band = [{entry.lo:.4f}, {entry.hi:.4f}]"]
        if entry.bend is not None:
            lines += [f'[entry."{name}".bend]', *bend_lines(entry.bend)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
