"""A user's own rows of one family of deployments become a runtime of the user's own.

A family is one model, GPU, framework and precision. Its measured times per token over ours, in a
few rows, say by what factor everything takes longer there. The factor is pulled towards one as far
as families are known to differ, so that a single row is not believed entirely. The rows are kept in
the runtime's file, where serving corrects loads like theirs further (`serving/own.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simulators.composition.deployments import APART, FRAMEWORKS, Deployed, steady_state
from simulators.composition.engine_columns import (
    GAPS,
    KINDS,
    PACES,
    kernels_text,
    paces_text,
    scaled,
)
from simulators.composition.price import iteration
from simulators.composition.replica import load_runtime
from simulators.core.calibration import sha256_of, write_calibration
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.workload.llm.parallelism import Parallelism

Floats = NDArray[np.float64]

OWN = Path("catalog") / "runtimes"
NEEDED = ("model", "gpu", "framework", "clients", "prompt_tokens", "output_tokens", "tpot_s")
DEFAULTS = {
    "tp": 1, "ep": 1, "attention_dp": 1, "dtype": "bf16", "kv_dtype": "bf16", "ttft_s": None,
}  # fmt: skip
COUNTS = ("clients", "prompt_tokens", "output_tokens", "tp", "ep", "attention_dp")
TIMES = ("tpot_s", "ttft_s")

FAMILIES_DIFFER, ROWS_DIFFER = 0.2, 0.1
"""Deviations of the logarithm of measured over predicted times, between families and within one."""


def fit_family(file: Path) -> Path:
    """Write `catalog/runtimes/<file's name>.toml` from a CSV or Parquet file of measured rows.

    Columns: model, gpu, framework, clients, prompt_tokens, output_tokens (longest lengths, drawn
    evenly from a fifth less), tpot_s; ttft_s where it was measured; and tp, ep, attention_dp,
    dtype, kv_dtype where they are not 1 and bf16.

    Raises:
        UserError: a column or a value is missing, the rows are of more than one family, or the
            runtime would take the name of a shipped one.
    """
    if "@" in file.stem or (PACKAGE / RUNTIMES.path / f"{file.stem}.toml").is_file():
        raise UserError(
            f"{file}: a runtime cannot be called '{file.stem}', for a shipped one is, or it has an "
            "@; give the file another name"
        )
    table = measured_table(file)
    rows = [measured_deployment(row) for row in table]
    families = {row.family for row in rows}
    if len(families) != 1:
        raise UserError(
            f"{file} has rows of {len(families)} families; one factor is one of a single model, "
            "GPU, framework and precision"
        )
    ratios = np.log(np.array([row.tpot_s for row in rows]) / predicted_s(rows))
    factor = float(np.exp(_believed(ratios)))
    others = [_believed(np.delete(ratios, i)) for i in range(ratios.size)]
    error = np.abs(np.expm1(np.array(others) - ratios))
    framework, replica = rows[0].framework, rows[0].replica()
    runtime = scaled(load_runtime(framework), factor, replica)
    body = (
        "# Written by `python -m lab.fits.runtimes --deployments`. To change a number, "
        f'fit again.\n[provenance]\nmeasured = "{file.name}"\nsha256 = "{sha256_of(file)}"\n'
        f'rows = {len(rows)}\nsplit = "each row predicted by the others"\n'
        f"held_out_mape = {error.mean():.3f}\nfactor = {factor:.4g}\n"
        f'\n[runtime]\nframework = "{framework}"\n'
    )
    body += "".join(f"{name} = {getattr(runtime, name):.4g}\n" for name in (*GAPS, *KINDS))
    for kind in PACES:
        for device, paces in getattr(runtime, kind).items():
            body += paces_text(f"{kind}.{device}", paces)
    path = OWN / f"{file.stem}.toml"
    write_calibration(path, body + kernels_text(framework) + _rows_text(table))
    return path


def _rows_text(table: Sequence[Mapping[str, Any]]) -> str:
    """Return measured rows as TOML."""
    text = ""
    for row in table:
        known = {name: row[name] for name in (*NEEDED, *DEFAULTS) if row.get(name) is not None}
        text += "\n[[measured]]\n"
        text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in known.items())
    return text


def predicted_s(rows: Sequence[Deployed]) -> Floats:
    """Return times per token in the steady state."""
    found = []
    for row in rows:
        replica = row.replica()
        state = steady_state(replica, [row], apart=row.framework in APART)
        found.append(
            state.decode_weight * iteration(replica, state.decode).latency_s
            + state.prefill_weight * iteration(replica, state.prefill).latency_s
        )
    return np.concatenate(found)


def _believed(ratios: Floats) -> float:
    """Return the logarithm of the factor that some rows suggest."""
    return float(ratios.sum() / (ratios.size + (ROWS_DIFFER / FAMILIES_DIFFER) ** 2))


def measured_table(file: Path) -> list[dict[str, Any]]:
    """Return the measured rows of a CSV or Parquet file, by column.

    Raises:
        UserError: it is not there, cannot be read, or lacks a column.
    """
    if not file.is_file():
        raise UserError(f"deployments '{file}': there is no such file")
    try:
        table = pq.read_table(file) if file.suffix == ".parquet" else pc.read_csv(file)
    except pa.ArrowInvalid as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if missing := [name for name in NEEDED if name not in table.column_names]:
        raise UserError(f"{file} lacks the columns {', '.join(missing)}")
    rows: list[dict[str, Any]] = table.to_pylist()
    if not rows:
        raise UserError(f"{file} has no rows")
    return rows


def measured_deployment(row: Mapping[str, Any]) -> Deployed:
    """Return one measured row; its time to the first token is NaN where nobody measured it.

    Raises:
        UnknownNameError: its framework is not one of those fitted.
        UserError: a count is less than one, or a time not above zero.
    """
    row = {**DEFAULTS, **{name: value for name, value in row.items() if value is not None}}
    if row["framework"] not in FRAMEWORKS:
        raise UnknownNameError("framework", str(row["framework"]), FRAMEWORKS)
    _check(row)
    return Deployed(
        name="",
        family=(row["model"], row["gpu"], row["framework"], row["dtype"]),
        framework=row["framework"],
        model=row["model"],
        gpu=row["gpu"],
        cut=Parallelism(tp=row["tp"], ep=row["ep"], attention_dp=row["attention_dp"]),
        dtype=row["dtype"],
        kv_dtype=row["kv_dtype"],
        clients=int(row["clients"]),
        prompt=int(row["prompt_tokens"]),
        output=int(row["output_tokens"]),
        crowded=False,
        ttft_s=float("nan") if row["ttft_s"] is None else float(row["ttft_s"]),
        tpot_s=float(row["tpot_s"]),
        peer_ttft_s=None,
        peer_tpot_s=None,
        excluded="",
    )


def _check(row: Mapping[str, Any]) -> None:
    """Raise an error at the first number of a row that cannot be one of a measurement."""
    for name in (*COUNTS, *TIMES):
        value: Any = row.get(name)
        if name in DEFAULTS and value is None:
            continue
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if not is_number or value <= 0 or (name in COUNTS and value < 1):
            least = "at least 1" if name in COUNTS else "a number of seconds above zero"
            raise UserError(f"{name} of a measured row is {value}; it must be {least}")
