"""A serving runtime calibrated to measured deployments of one model, GPU, framework and precision.

Measured TPOT over predicted TPOT gives one factor for all times of the framework's runtime. The
factor is shrunk towards one by the known standard deviation between such families, so a single row
counts only in part. The file keeps the rows: serving corrects similar loads further.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from planning.calibrate.measurements import Gain, read_table, write_calibration
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.replica import load_runtime
from simulators.core.calibration import read_choice
from simulators.core.errors import UserError
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.core.jit import Floats
from simulators.serving.measured_deployments import (
    DEFAULTS,
    NEEDED,
    Deployed,
    drafts_of,
    measured_deployment,
    point_of,
)
from simulators.serving.simulator import simulate
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.parallelism import Parallelism

OWN = Path("catalog") / "runtimes"
"""Folder of a user's own runtimes."""
FAMILIES = ("gemm", "experts", "prefill", "decode", "vector")
BETWEEN_FAMILIES, WITHIN_FAMILY = 0.2, 0.1
"""Standard deviations of log measured over predicted TPOT."""


def is_deployment_file(file: Path) -> bool:
    """Return whether a file contains measured deployments."""
    return "tpot_s" in read_table(file).column_names


def calibrate_deployment(name: str, measured: Path) -> tuple[list[Gain], Path]:
    """Write a runtime that matches measured deployments.

    Args:
        name: name of the runtime, for `runtime=NAME`.
        measured: Parquet or CSV with model, gpu, framework, clients, prompt_tokens, output_tokens
            (longest lengths) and tpot_s; optionally ttft_s, tp, ep, attention_dp, dtype, kv_dtype,
            speculation and draft_tokens.

    Raises:
        UserError: a column or value is missing, a TPOT is below the bound of the memory bandwidth,
            the rows are of several families, or the name is built in.
    """
    if (PACKAGE / RUNTIMES.path / f"{name}.toml").is_file():
        raise UserError(f"'{name}' is a built-in runtime; choose another name")
    table = read_table(measured, NEEDED).to_pylist()
    rows = [measured_deployment(row) for row in table]
    for number, row in enumerate(rows, 1):
        _check_bandwidth(number, row)
    families = {
        (row.model, row.gpu, row.framework, row.dtype, *drafts_of(row.speculation)) for row in rows
    }
    if len(families) != 1:
        raise UserError(
            f"{measured} has rows of {len(families)} families; a factor holds for one model, GPU, "
            "framework, precision and number of draft tokens"
        )
    predicted_s = np.array([_tpot_s(row) for row in rows])
    ratios = np.log(np.array([row.tpot_s for row in rows]) / predicted_s)
    factor = float(np.exp(_shrunk(ratios)))
    before, after, halved = np.expm1(-ratios), _left_out(ratios), _left_out(ratios[::2])
    errors = (float(np.mean(np.abs(error))) for error in (before, halved, after))
    gain = Gain("time per output token", len(rows), *errors)
    known = (*NEEDED, *DEFAULTS)
    content: dict[str, Any] = {
        **_scaled(rows[0], factor),
        "provenance": {"factor": factor},
        "measured": [{n: row[n] for n in known if row.get(n) is not None} for row in table],
    }
    file = OWN / f"{name}.toml"
    write_calibration(file, content, measured, len(rows), "rows left out in turn", gain.after)
    return [gain], file


def _check_bandwidth(number: int, row: Deployed) -> None:
    """Raise `UserError` for a TPOT below the time to read the weights of one token once."""
    tokens = 1 + drafts_of(row.speculation)[1]
    if doubt := doubted_tpot(row.tpot_s, row.model, row.gpu, row.layout, row.dtype, tokens):
        raise UserError(f"row {number}: {doubt}? Is tpot_s in seconds? Nothing was calibrated")


def doubted_tpot(
    tpot_s: float, model: str, gpu: str, layout: Parallelism, dtype: str, tokens: int = 1
) -> str:
    """Return why a measured TPOT is doubtful; empty if the memory can deliver it.

    `tokens`: most tokens of a sequence per pass, above 1 with draft tokens.
    """
    sheet, described = load_gpu(gpu), load_model(model)
    table = described.vocab * described.hidden / described.parameters
    table = 0.0 if described.tied_embeddings else table
    share = described.active_parameters / described.parameters - table
    bound_s = share * weight_bytes(described, layout, dtype) / sheet.hbm_bytes_per_s
    if tokens * tpot_s >= bound_s:
        return ""
    return (
        f"a TPOT of {1e3 * tpot_s:.3g} ms is below {1e3 * bound_s:.3g} ms, the time to read the "
        f"{dtype} weights of {model} once from the memory of {layout.tp * layout.pp} {gpu}. Are "
        "model, GPU, tp and dtype right, and was speculative decoding off"
    )


def _tpot_s(row: Deployed) -> float:
    found = simulate(point_of(row)).tpot_mean_s
    if found is None:
        raise UserError(f"{row.model} on {row.gpu}: the simulator predicts no TPOT for this row")
    return found


def _shrunk(ratios: Floats) -> float:
    """Return the logarithm of the factor: the mean log ratio, shrunk towards zero."""
    return float(ratios.sum() / (ratios.size + (WITHIN_FAMILY / BETWEEN_FAMILIES) ** 2))


def _left_out(ratios: Floats) -> Floats:
    others = np.array([_shrunk(np.delete(ratios, i)) for i in range(ratios.size)])
    return np.expm1(others - ratios)


def _scaled(row: Deployed, factor: float) -> Mapping[str, Any]:
    gpu, runtime = load_gpu(row.gpu), load_runtime(row.framework)
    written = read_choice(RUNTIMES.find(row.framework))
    chip, fabric = gpu.architecture, cluster_for("auto", gpu).fabric_of(gpu)
    pace = {name: factor * runtime.pace(chip, name) for name in FAMILIES}
    transferred = {name: factor * runtime.pace(chip, name, is_own=False) for name in FAMILIES}
    many = runtime.many.get(chip, {})
    return {
        "runtime": {
            name: factor * value if name.endswith("_s") else value
            for name, value in written["runtime"].items()
        },
        "paces": {chip: pace, fabric: {"messages": factor * runtime.pace(fabric, "messages")}},
        "transferred": {chip: transferred},
        "many": {chip: {n: factor * many[n] if n in many else pace[n] for n in FAMILIES[:2]}},
        **{name: written[name] for name in ("kernels", "batch_times") if name in written},
    }
