"""How many rows of measured deployments name a model or a GPU that the catalog lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lab.claims.lines import at_most
from lab.tables.catalog_names import is_gpu, is_model
from lab.tables.rows import read_records
from simulators.core.contract import PARITY, Check

MEASURED = "serving_measured"
TABLES = {
    f"{MEASURED}/inferencex_aic_silicon.parquet": ("model", "gpu"),
    f"{MEASURED}/inferencex_aic_silicon_qwen3_32b.parquet": ("model", "gpu"),
    f"{MEASURED}/mlperf_inference_v4_1_llm.parquet": ("model", "gpu"),
    f"{MEASURED}/nemo_megatron_training.parquet": ("model", "gpu"),
    f"{MEASURED}/serving_result_blocks.parquet": ("model", "gpu"),
    f"{MEASURED}/trtllm_online_qps.parquet": ("model", "gpu"),
    f"{MEASURED}/trtllm_perf_overview_offline.parquet": ("model", "gpu"),
    f"{MEASURED}/trtllm_static_batch_2023_2024.parquet": ("model", "gpu"),
    "mlperf/inference_v5_1.parquet": ("model", "accelerator"),
    "mlperf/inference_v6_0.parquet": ("model", "accelerator"),
    "mlperf/training_summary.parquet": ("benchmark", "accelerator"),
}
"""By table, the columns that name a model and a GPU."""

OF_LANGUAGE = ("deepseek", "gpt", "llama", "mixtral", "qwen")
"""How names of MLPerf's benchmarks of language models begin; the others are not counted."""

NEEDS = tuple(TABLES)
KIND = PARITY
LIMIT = 3.0
NAMED = 6
"""Unknown names that the note spells out."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the share of rows, in percent, whose model or GPU the catalog does not know."""
    unknown, rows = Counter[str](), 0
    for table, columns in TABLES.items():
        for record in read_records(reference / table, columns):
            model, gpu = (record[column] or "unnamed" for column in columns)
            if table.startswith("mlperf/") and not model.startswith(OF_LANGUAGE):
                continue
            rows += 1
            if not is_model(model) or not is_gpu(gpu):
                unknown[model if not is_model(model) else gpu] += 1
    share = 100.0 * unknown.total() / rows if rows else float("nan")
    most = ", ".join(f"{count} of {name}" for name, count in unknown.most_common(NAMED))
    yield at_most("rows of unknown models or GPUs", share, LIMIT, rows, f"most often {most}")
