"""Chains timed inside an engine become calibrations: `python -m lab.fits.engine_chains`.

On half of all sizes; the other half judges, and half of it gives the interval. Each of these
GPUs gets a file of side kernels of its own; `side_fit` writes those of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.auxiliary_kernels import BANDED
from lab.fits.methods.least_squares import fit_log
from lab.tables.kernels.engine_chains import ChainRows, read_chain_rows
from lab.tables.kernels.engine_products import GPUS, LAYERS
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.contract import Check
from simulators.core.errors import UserError
from simulators.core.report import print_checks
from simulators.kernels.families.cache_resident import UNMEASURED, chain_seconds
from simulators.kernels.frameworks import SIDE_FOLDER
from simulators.kernels.intervals import band_of

Floats = NDArray[np.float64]

BOUNDS = {
    "start_s": (5e-7, 2e-5), "l2": (1.0, 64.0), "share": (0.02, 1.0), "rest": (0.001, 0.5),
    "bandwidth": (0.3, 1.0),
}  # fmt: skip
"""What the numbers stay between."""

RIDGE = 0.01


def main() -> None:
    """Fit every GPU of the table and report."""
    reference = reference_folder()
    if reference is None or not (reference / LAYERS).is_file():
        raise UserError(f"there is no {LAYERS}; set SWEEPER_REFERENCE to the folder that has it")
    lines = []
    for name in GPUS:
        gpu, parts = load_gpu(name), read_chain_rows(reference, name)
        fitted = [fit_chain(part.where(~part.held_out), gpu) for part in parts]
        text = _text(reference, gpu, parts, fitted)
        write_calibration(SIDE_FOLDER / f"{name}.toml", text)
        lines += [
            Check(f"{name} {part.label} MAPE", 100.0 * _error(part, gpu, numbers), "%")
            for part, numbers in zip(parts, fitted, strict=True)
        ]
    print_checks(lines)


def fit_chain(rows: ChainRows, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of one kernel."""
    start = np.log(list(UNMEASURED.values()))
    low, high = (np.log([BOUNDS[name][i] for name in UNMEASURED]) for i in (0, 1))
    operator = rows.operator

    def numbers(p: Floats) -> dict[str, float]:
        return dict(zip(UNMEASURED, np.exp(p).tolist(), strict=True))

    fitted = fit_log(
        lambda p: chain_seconds(operator, gpu, numbers(p)),
        start,
        rows.seconds,
        weights=np.ones(rows.seconds.size),
        ridge=np.full(start.size, RIDGE),
        bounds=(low, high),
    )
    return numbers(fitted)


def _error(part: ChainRows, gpu: Gpu, numbers: dict[str, float]) -> float:
    """Return the mean error on sizes nothing was fitted to."""
    judged = part.where(part.held_out)
    return float(np.mean(np.abs(chain_seconds(judged.operator, gpu, numbers) / judged.seconds - 1)))


def _text(
    reference: Path, gpu: Gpu, parts: Sequence[ChainRows], fitted: Sequence[dict[str, float]]
) -> str:
    """Return the calibration file of one GPU."""
    errors = [_error(part, gpu, numbers) for part, numbers in zip(parts, fitted, strict=True)]
    lines = [
        f"# Written by `python -m lab.fits.engine_chains` for {gpu.name}.",
        "# To change a number, change the fit.",
        "[provenance]",
        f'measured = ["{LAYERS}"]',
        f'sha256 = ["{sha256_of(reference / LAYERS)}"]',
        f"rows = {sum(int(np.count_nonzero(~part.held_out)) for part in parts)}",
        'split = "half of the sizes, by a hash of the size; errors are of the other half"',
        f"held_out_mape = {np.mean(errors):.4f}",
    ]
    for part, numbers, error in zip(parts, fitted, errors, strict=True):
        banded = part.where(part.held_out & (part.place < BANDED))
        band = band_of(chain_seconds(banded.operator, gpu, numbers), banded.seconds)
        ends = [", ".join(f"{x:.4f}" for x in end) for end in (band.lo, band.hi)]
        stated = ", ".join(f"{name} = {value:.5g}" for name, value in numbers.items())
        lines += ["", f'[entry."{part.label}"]', f"numbers = {{ {stated} }}"]
        lines += [f"held_out_mape = {error:.4f}"]
        lines += [f"band = {{ lo = [{ends[0]}], hi = [{ends[1]}] }}"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
