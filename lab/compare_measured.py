"""How far our answers are from one's own measurements: the errors `validate` shows, row by row.

Calls timed from the host are compared with `price_call`, loops on the device with `price`. Rows
that a calibration was fitted to do not judge it: of a file whose hash it names, the held-out half
(of products on tensor cores, a quarter) is compared. A class too small to hold anything out is
compared whole, and its line says so.

    python -m lab.compare_measured mine.parquet --gpu l40s
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lab.claims.claim import Claim
from lab.claims.kernels import FAMILY_OF, as_shipped, priced
from lab.claims.predictions import together
from lab.claims.runner import lines_of
from lab.fits.driver import fitted_tables, sha256_of
from lab.fits.kernels.fp32_kernels import is_full
from lab.tables.fp32 import catalog_name, rows_of_table
from lab.tables.fused_kernels import measured_in
from lab.tables.rows import read_table
from lab.tables.tensor_kernels import own_products
from planning.calibrate.measurements import CLASS_OF, NEEDS
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.checks import Check, print_checks
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import GPUS
from simulators.evidence.calibration_files import calibrations
from simulators.evidence.lookup import DEFAULT_FRAMEWORK
from simulators.kernels.levels import profile_of
from simulators.kernels.price import price_call

ATTENTION = ("prefill", "decode")


def compare_file(measured: Path, device: str, framework: str) -> list[Check]:
    """Return one line of errors per family of operators in a file of measurements.

    Args:
        measured: Parquet or CSV as `sweeper measure` writes it.
        device: the GPU by the name of its data sheet; "" to go by the column `gpu`.
        framework: whose kernels our answers are about, where a family knows several.

    Raises:
        UserError: the file cannot be read, holds several GPUs or one without a data sheet.
    """
    table = read_table(measured, NEEDS)
    gpu = load_gpu(device or _device_in(table, measured))
    calls, products = (calibrations(kind).get(gpu.name, ()) for kind in ("fp32", "tensor"))
    lines = [
        *_calls(table, gpu, unseen_only=_was_fitted(calls, measured)),
        *_loops(table, gpu, framework, unseen_only=_was_fitted(products, measured)),
    ]
    if not lines:
        ops = ", ".join(map(str, table["op"].unique().to_pylist()))
        raise UserError(f"{measured}: no operator to compare; column 'op' has: {ops or 'no rows'}")
    return lines


def _device_in(table: pa.Table, measured: Path) -> str:
    """Return the data sheet of the one GPU a file is about."""
    names = table["gpu"].unique().to_pylist() if "gpu" in table.column_names else []
    with contextlib.suppress(UnknownNameError):
        if len(names) == 1:
            return catalog_name(str(names[0]))
    whose = " and ".join(f"'{name}'" for name in names) or "a GPU it does not name"
    raise UserError(
        f"{measured} holds rows of {whose}; say which data sheet they belong to: --gpu NAME\n"
        f"Known: {', '.join(GPUS.names())}"
    )


def _calls(table: pa.Table, gpu: Gpu, *, unseen_only: bool) -> Iterator[Check]:
    """Compare fp32 calls timed from the host."""
    known = table.filter(pc.is_in(table["op"], pa.array(list(CLASS_OF))))
    parts = [rows for found, _ in rows_of_table(known, gpu.name) for rows in found]
    profile = profile_of(gpu)
    for family in dict.fromkeys(FAMILY_OF[part.kernel] for part in parts):
        mine = [part for part in parts if FAMILY_OF[part.kernel] == family]
        some = [p.where(p.held_out) if unseen_only and is_full(p) else p for p in mine]
        seen = unseen_only and not all(map(is_full, mine))
        note = f"{profile.level}, fitted to these rows" if seen else profile.level
        rows = together(priced(p, price_call(p.operator, gpu, profile)) for p in some if len(p))
        yield from lines_of(Claim(name=f"{gpu.name} {family} MAPE", note=note), rows)


def _loops(table: pa.Table, gpu: Gpu, framework: str, *, unseen_only: bool) -> Iterator[Check]:
    """Compare tensor-core products and attention timed in loops on the device."""
    products = own_products(table, gpu.name)
    parts = [part.where(part.held_out) if unseen_only else part for part in products]
    parts = [part for part in parts if part.dtype in gpu.peak_flops and len(part)]
    for kernel in ATTENTION:
        parts += measured_in(table.filter(pc.equal(table["op"], kernel)), gpu.name, kernel, 1)
    for part in parts:
        family = f"{part.dtype} product" if part.kernel == "gemm" else part.kernel
        claim = Claim(name=f"{gpu.name} {family} MAPE", note=f"{framework}'s kernels")
        yield from lines_of(claim, as_shipped(replace(part, framework=framework)))


def _was_fitted(calibrations: Iterable[Path], table: Path) -> bool:
    """Return whether a calibration was fitted to this table."""
    return sha256_of(table) in {digest for _, digest in fitted_tables(calibrations)}


def main(words: Sequence[str] | None = None) -> None:
    """Print the errors on a file of measurements."""
    parser = argparse.ArgumentParser(prog="python -m lab.compare_measured")
    parser.add_argument("measured", type=Path, help="a file that `sweeper measure` wrote")
    parser.add_argument("--gpu", default="", help="data sheet of the GPU; else by column `gpu`")
    parser.add_argument("--framework", default=DEFAULT_FRAMEWORK, help="of the kernels")
    asked = parser.parse_args(words)
    print_checks(compare_file(asked.measured, asked.gpu, asked.framework))


if __name__ == "__main__":
    main()
