"""A serving runtime calibrated to measured deployments of one model, GPU, framework and precision.

Measured TPOT over predicted TPOT gives one factor for all times of the framework's runtime. The
factor is shrunk towards one by the known standard deviation between such families, so a single row
counts only in part. The file keeps the rows: serving corrects similar loads further. Later answers
of `ask` about the family use the newest calibration under the family's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from planning.calibrate.measurements import Gain, read_table, write_calibration
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.replica import FRAMEWORKS, NOTHING, load_runtime
from simulators.core.calibration import read_choice
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.core.jit import Floats
from simulators.serving.measured.corrections import (
    DeploymentLoad,
    corrected,
    drafts_of,
    load_of,
    measured_rows,
)
from simulators.serving.measured.deployments import (
    DEFAULTS,
    NEEDED,
    Deployed,
    measured_deployment,
    point_of,
)
from simulators.serving.simulator import simulate
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.parallelism import Parallelism

PREFIX = "measured_"
"""Begin of the names of calibrations that later answers use."""
FAMILIES = ("gemm", "experts", "prefill", "decode", "vector")
BETWEEN_FAMILIES, WITHIN_FAMILY = 0.2, 0.1
"""Standard deviations of log measured over predicted TPOT."""


def own_runtimes() -> Path:
    """Return the folder of a user's own runtimes: in $SWEEPER_HOME, else in `./catalog`."""
    home = os.environ.get("SWEEPER_HOME", "")
    return (Path(home) if home else Path("catalog")) / "runtimes"


def family_name(row: Mapping[str, Any]) -> str:
    """Return the name of a calibration by engine, model, GPU and precision of a measured row.

    >>> family_name({"framework": "vllm", "model": "gpt2", "gpu": "l4", "dtype": "bf16+fp4"})
    'measured_vllm_gpt2_l4_bf16_fp4'
    """
    names = ["framework", "model", "gpu", "dtype"]
    if row.get("speculation") not in (None, NOTHING):
        names += ["speculation", "draft_tokens"]
    words = (str(row.get(n) or DEFAULTS.get(n)) for n in names)
    return PREFIX + re.sub(r"[^a-z0-9]+", "_", "_".join(Path(word).stem for word in words).lower())


def kept_calibrations() -> dict[str, tuple[Deployed, ...]]:
    """Return the measured rows of the calibrations that answers use, by name of the runtime.

    Those of servers with speculative decoding are used by name alone: answers search its options.
    """
    found = {n: measured_rows(n) for n in RUNTIMES.names() if n.startswith(PREFIX)}
    return {
        name: rows
        for name, rows in found.items()
        if rows and not any(drafts_of(row.speculation)[1] for row in rows)
    }


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
    framework = runtime_of(name, rows[0].framework)
    found = [_predicted(row) for row in rows]
    tpot = np.array([row.tpot_s for row in rows]) / [tpot_s for tpot_s, _ in found]
    factor = float(np.exp(shrunk(np.log(tpot))))
    ttft = np.array([row.ttft_s for row in rows]) / [ttft_s for _, ttft_s in found]
    loads = [load_of(row) for row in rows]
    has_ttft = np.flatnonzero(np.isfinite(ttft))
    gains = [_gain("TPOT", loads, tpot)]
    if has_ttft.size:
        gains.append(_gain("TTFT", [loads[i] for i in has_ttft], ttft[has_ttft]))
    known = (*NEEDED, *DEFAULTS)
    content: dict[str, Any] = {
        **scaled(rows[0].gpu, framework, factor),
        "provenance": {"factor": factor, "mape_before": gains[0].before},
        "measured": [{n: row[n] for n in known if row.get(n) is not None} for row in table],
    }
    file = own_runtimes() / f"{name}.toml"
    write_calibration(file, content, measured, len(rows), "rows left out in turn", gains[0].after)
    return gains, file


def _check_bandwidth(number: int, row: Deployed) -> None:
    """Raise `UserError` for a TPOT below the time to read the weights of one token once."""
    tokens = 1 + drafts_of(row.speculation)[1]
    if doubt := implausible_tpot(row.tpot_s, row.model, row.gpu, row.layout, row.dtype, tokens):
        raise UserError(f"row {number}: {doubt}? Is tpot_s in seconds? Nothing was calibrated")


def implausible_tpot(
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


def _predicted(row: Deployed) -> tuple[float, float]:
    """Return mean TPOT and TTFT of a row, not calibrated."""
    found = simulate(point_of(row))
    if found.tpot_mean_s is None or found.ttft_mean_s is None:
        raise UserError(f"{row.model} on {row.gpu}: the simulator predicts no TPOT for this row")
    return found.tpot_mean_s, found.ttft_mean_s


def shrunk(ratios: Floats) -> float:
    """Return the logarithm of a factor for log ratios: the mean log ratio, shrunk towards zero."""
    return float(ratios.sum() / (ratios.size + (WITHIN_FAMILY / BETWEEN_FAMILIES) ** 2))


def _gain(metric: str, loads: Sequence[DeploymentLoad], ratios: Floats) -> Gain:
    """Return the errors of a metric: not calibrated, and of each row calibrated to the others."""
    before = float(np.mean(np.abs(1.0 / ratios - 1.0)))
    halved, after = (_left_out(metric, loads[::step], ratios[::step]) for step in (2, 1))
    return Gain(metric, ratios.size, before, halved, after)


def _left_out(metric: str, loads: Sequence[DeploymentLoad], ratios: Floats) -> float:
    errors = []
    for i, ratio in enumerate(ratios):
        others = [(loads[j], float(ratios[j])) for j in range(ratios.size) if j != i]
        factor = corrected(others, [loads[i]], metric)[0] if others else 1.0
        errors.append(abs(float(factor / ratio) - 1.0))
    return float(np.mean(errors))


def runtime_of(name: str, framework: str) -> str:
    """Return the runtime that a calibration called `name` scales.

    Raises:
        UserError: the name is built in, or the framework has no runtime.
    """
    if (PACKAGE / RUNTIMES.path / f"{name}.toml").is_file():
        raise UserError(f"'{name}' is a built-in runtime; choose another name")
    if framework not in FRAMEWORKS:
        raise UnknownNameError("framework", framework, FRAMEWORKS)
    return framework


def scaled(gpu_name: str, framework: str, factor: float) -> Mapping[str, Any]:
    """Return the runtime of a framework with all times on a GPU multiplied by a factor."""
    gpu, runtime = load_gpu(gpu_name), load_runtime(framework)
    written = read_choice(RUNTIMES.find(framework))
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
