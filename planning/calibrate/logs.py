"""Measured deployments from logs of load tests of one running server.

A log states the load and the latencies, seldom the GPU and the launch: these come from flags. Loads
are closed loops; the mean number of running requests stands in for the clients of a server under
traffic, whose TTFT depends on its arrivals and is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from planning.calibrate.deployment import family_name, own_runtimes
from planning.load_tests.serving import runs_in
from planning.logged_load import logged_load
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.engine_defaults import checkpoint_dtype
from simulators.composition.replica import FRAMEWORKS
from simulators.core.errors import UserError
from simulators.core.folder import GPUS, MODELS
from simulators.serving.measured.deployments import DEFAULTS, INFERENCEX, NEEDED

STATED = ("model", "gpu", "framework", "dtype", "kv_dtype", "tp", "ep", "attention_dp")
"""Columns of a measured row that flags may state."""


def rows_of_logs(files: Sequence[Path], stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a measured row for each run in some logs of load tests.

    Args:
        files: results of `vllm bench serve`, SGLang's `bench_serving`, AIPerf, GenAI-Perf or
            InferenceX, or metrics of a vLLM server.
        stated: what was launched, by names of `STATED`; counts over what a log states.

    Raises:
        UserError: a file has no run, a run has no fixed number of clients, no lengths or no TPOT,
            or the model, the GPU or the engine is stated nowhere.
    """
    found = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
        found += [_row(run, metrics, stated, file) for run, metrics in runs_in(text, str(file))]
    return found


def write_rows_of_logs(files: Sequence[Path], stated: Mapping[str, Any], name: str) -> Path:
    """Write the rows of logs as CSV beside the user's runtimes, and return the file.

    `name`: name of the runtime; empty: by model, GPU, engine and precision of the first row.
    """
    rows = rows_of_logs(files, stated)
    file = own_runtimes() / f"{name or family_name(rows[0])}.csv"
    columns = [n for n in (*NEEDED, *DEFAULTS) if any(row.get(n) is not None for row in rows)]
    table = pa.Table.from_pylist([{n: row.get(n) for n in columns} for row in rows])
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.csv.write_csv(table, file)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    return file


def _row(
    run: Mapping[str, Any], metrics: Mapping[str, float], stated: Mapping[str, Any], file: Path
) -> dict[str, Any]:
    load = logged_load([run], "")
    launch = {"model": load.model, "framework": run.get("backend"), **run.get("launch", {})}
    launch |= {name: value for name, value in stated.items() if value}
    model, gpu, framework = (str(launch.get(n) or "") for n in ("model", "gpu", "framework"))
    if not MODELS.has(model) and not Path(model).is_file():
        said = (
            f"names the model '{model}', which is not in the catalog"
            if model
            else "does not name the model"
        )
        raise UserError(f"{file} {said}; state it: --model NAME")
    if not gpu:
        raise UserError(f"{file} does not name the GPU; state it: --gpu NAME")
    if framework not in FRAMEWORKS:
        raise UserError(
            f"{file} does not name the engine; state it: --engine {' or '.join(FRAMEWORKS)}"
        )
    tpot_s = metrics.get("tpot_mean_s", metrics.get("tpot_p50_s"))
    lengths = (load.prompt_tokens, load.output_tokens)
    if not load.clients:
        rate = f" ({load.rate:.4g} requests per second)" if load.rate not in (None, INF) else ""
        raise UserError(
            f"{file} has no fixed number of clients{rate}; calibration reads closed loops: run the "
            "benchmark with --max-concurrency"
        )
    if tpot_s is None or None in lengths:
        raise UserError(f"{file} states no {'TPOT' if tpot_s is None else 'lengths of requests'}")
    longest = (max(1, round((n or 0.0) / INFERENCEX.mean_length)) for n in lengths)
    model, gpu = load_model(model).name, load_gpu(GPUS.name_of(gpu)).name
    dtype = str(launch.get("dtype") or _usual_dtype(model, gpu))
    return {
        "model": model,
        "gpu": gpu,
        "framework": framework,
        "clients": load.clients,
        **dict(zip(("prompt_tokens", "output_tokens"), longest, strict=True)),
        "tpot_s": tpot_s,
        "ttft_s": None if run.get("is_traffic") else metrics.get("ttft_mean_s"),
        "dtype": dtype,
        **{n: launch[n] for n in ("kv_dtype", "tp", "ep", "attention_dp") if launch.get(n)},
    }


INF = float("inf")


def _usual_dtype(model: str, gpu: str) -> str:
    """Return the precision of the checkpoint; bf16 for one that states none."""
    dtype = checkpoint_dtype(model, gpu)
    has_formats = bool(load_model(model).formats)
    return "bf16" if not has_formats and "bf16" in load_gpu(gpu).peak_flops else dtype
