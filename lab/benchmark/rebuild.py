"""Measured tables rebuilt from checkouts of the public repositories that published them.

    sweeper-lab benchmark rebuild CHECKOUTS --reference FOLDER

`CHECKOUTS` holds one folder per repository, named by it (`LLMServingSim`, `ai-hub-models`), at the
commit that the protocol names. The tables are written to FOLDER; `benchmark list --reference
FOLDER` then prints their hashes, which must be those of the documentation. Two sources are
converted here. The other tables are copies of one file with renamed columns, or were transcribed
from documentation: their sources are printed, with what was done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl
import yaml  # type: ignore[import-untyped]

from lab.benchmark.protocol import PROTOCOL
from simulators.core.errors import UserError

STAMPS = {"queued_s": "queued_ts", "scheduled_s": "scheduled_ts"}
STAMPS |= {"first_token_s": "first_token_ts", "last_token_s": "last_token_ts"}
COUNTS = ("request_id", "input_toks", "output_toks")
TWO_RANKS = "Qwen3-32B"
"""The run with a table of its own."""


def requests(checkout: Path) -> dict[str, pl.DataFrame]:
    """Return the requests of vLLM's runs in a checkout of casys-kaist/LLMServingSim.

    Times are seconds since the first request was queued, or arrived.
    """
    found: dict[str, list[pl.DataFrame]] = {}
    for file in sorted((checkout / "bench" / "examples").glob("*/*/vllm/requests.jsonl")):
        gpu, model = file.parts[-4:-2]
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
        raw = pl.DataFrame(rows)
        frame = raw.select(
            pl.lit(f"{gpu}__{model}").alias("run"),
            *COUNTS,
            arrival_s=pl.col("arrival_time") - pl.col("arrival_time").min(),
            **{ours: pl.col(name) - pl.col("queued_ts").min() for ours, name in STAMPS.items()},
        )
        table = "vllm_requests" + ("_qwen3_32b" if model == TWO_RANKS else "")
        found.setdefault(f"serving_modern/{table}.parquet", []).append(frame)
    return {name: pl.concat(frames) for name, frames in found.items()}


def perf(checkout: Path) -> dict[str, pl.DataFrame]:
    """Return the latencies of AI Hub's models in a checkout of quic/ai-hub-models."""
    files = sorted((checkout / "qai_hub_models" / "models").glob("*/perf.yaml"))
    rows = [row for file in files for row in _perf_rows(file)]
    return {"edge/qualcomm_aihub_perf.parquet": pl.DataFrame(rows)} if rows else {}


def _perf_rows(file: Path) -> Iterator[dict[str, object]]:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    for precision, one in content.get("precisions", {}).items():
        for component, measured in one.get("components", {}).items():
            for device, runtimes in measured.get("performance_metrics", {}).items():
                for runtime, cells in runtimes.items():
                    milliseconds = cells.get("inference_time_milliseconds")
                    yield {
                        "model": file.parent.name,
                        "component": component,
                        "precision": precision,
                        "device": device,
                        "runtime": runtime,
                        "job_status": cells.get("job_status"),
                        "latency_s": None if milliseconds is None else milliseconds / 1e3,
                    }


CONVERTED: Mapping[str, Callable[[Path], dict[str, pl.DataFrame]]] = {
    "LLMServingSim": requests,
    "ai-hub-models": perf,
}
"""Converters by the name of a repository."""


def main(names: Sequence[str], folder: Path | None) -> int:
    """Write the tables of the checkouts in a folder, and print the sources of all tasks."""
    for task, facts in PROTOCOL.tasks.items():
        print(f"{task}: {'; '.join(facts.source)} ({facts.licence}) -> {', '.join(facts.tables)}")
    if not names:
        return 0
    if folder is None:
        raise UserError("name the folder of the tables by --reference FOLDER")
    places = [(name, Path(names[0]) / name) for name in CONVERTED]
    if not any(place.is_dir() for _, place in places):
        raise UserError(f"{names[0]} has no checkout called {' or '.join(CONVERTED)}")
    for name, place in places:
        for table, frame in CONVERTED[name](place).items() if place.is_dir() else ():
            (folder / table).parent.mkdir(parents=True, exist_ok=True)
            frame.write_parquet(folder / table)
            print(f"Written: {folder / table}, {frame.height:,} rows")
    return 0
