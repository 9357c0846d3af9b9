"""How far our answers are from one's own measurements: the errors `validate` shows, row by row.

Calls timed from the host are compared with `price_call`, loops on the device with `price`. Rows
that a calibration was fitted to do not judge it: of a file whose hash it names, the held-out half
(of products on tensor cores, a quarter) is compared. A class too small to hold anything out is
compared whole, and its line says so.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lab.claims.kernels.fp32_kernels import Compared, by_family, compare, error_check
from lab.claims.kernels.tensor_cores import product_of
from lab.fits.fp32_kernels import is_full
from lab.tables.kernels.fp32_kernels import CLASS_OF, catalog_name, read_table, rows_of_table
from lab.tables.kernels.fused_kernels import attention_of, measured_in
from lab.tables.kernels.tensor_cores import own_products
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import fitted_digests, sha256_of
from simulators.core.contract import Check
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import GPUS
from simulators.kernels.levels import calibration_file, places, profile_of
from simulators.kernels.price import Kernel, price
from simulators.kernels.tensor_levels import tensor_files

ATTENTION = ("prefill", "decode")


def compare_file(measured: Path, device: str, framework: str) -> list[Check]:
    """Return one line of errors per family of operators in a file of measurements.

    Args:
        measured: Parquet or CSV as `measure --write` writes it.
        device: the GPU by the name of its data sheet; "" to go by the column `gpu`.
        framework: whose kernels our answers are about, where a family knows several.

    Raises:
        UserError: the file cannot be read, holds several GPUs or one without a data sheet.
    """
    table = read_table(measured)
    gpu = load_gpu(device or _device_in(table, measured))
    digest = sha256_of(measured)
    compared = [
        *_calls(table, gpu, unseen_only=digest in fitted_digests(_call_files(gpu))),
        *_products(table, gpu, framework, unseen_only=digest in fitted_digests(_own_tensor(gpu))),
        *_attention(table, gpu, framework),
    ]
    lines = [error_check(f"{c.gpu} {c.family} MAPE", c, note) for c, note in compared]
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


def _call_files(gpu: Gpu) -> list[Path]:
    file = calibration_file(gpu.name)
    return [] if file is None else [file]


def _own_tensor(gpu: Gpu) -> list[Path]:
    return [file for file in tensor_files(places()) if file.stem == gpu.name]


def _calls(table: pa.Table, gpu: Gpu, *, unseen_only: bool) -> list[tuple[Compared, str]]:
    """Compare fp32 calls timed from the host."""
    known = table.filter(pc.is_in(table["op"], pa.array(list(CLASS_OF))))
    if not known.num_rows:
        return []
    parts = [rows for found, _ in rows_of_table(known, gpu.name) for rows in found]
    profile = profile_of(gpu)
    compared = []
    for _, family, mine in by_family(parts):
        judged = [p.where(p.held_out) if unseen_only and is_full(p) else p for p in mine]
        seen = unseen_only and not all(map(is_full, mine))
        note = f"{profile.level}, fitted to these rows" if seen else profile.level
        compared.append((compare(gpu.name, family, judged, profile), note))
    return compared


def _products(
    table: pa.Table, gpu: Gpu, framework: str, *, unseen_only: bool
) -> list[tuple[Compared, str]]:
    """Compare tensor-core products timed in loops on the device."""
    compared = []
    for part in own_products(table, gpu.name):
        judged = part.where(part.held_out) if unseen_only else part
        if judged.kind in gpu.peak_flops and len(judged):
            family = f"{judged.kind} product"
            line = _priced(family, product_of(judged), gpu, framework, judged.seconds)
            compared.append((line, f"{framework}'s kernels"))
    return compared


def _attention(table: pa.Table, gpu: Gpu, framework: str) -> list[tuple[Compared, str]]:
    """Compare attention timed in loops on the device."""
    compared = []
    for kernel in ATTENTION:
        mine = table.filter(pc.equal(table["op"], kernel))
        for part in measured_in(mine, gpu.name, kernel, 1) if mine.num_rows else ():
            line = _priced(kernel, attention_of(part), gpu, framework, part.seconds)
            compared.append((line, f"{framework}'s kernels"))
    return compared


def _priced(
    family: str, operator: Kernel, gpu: Gpu, framework: str, seconds: NDArray[np.float64]
) -> Compared:
    priced = price(operator, gpu, framework=framework)
    covered = (priced.lo_s <= seconds) & (seconds <= priced.hi_s)
    return Compared(gpu.name, family, priced.latency_s, seconds, covered)
