"""Claims about LoRA adapters, co-location, KV transfer, reused prefixes and quantized weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import columns, predict, together
from lab.fits.links import fit_transfers, transfer_log_error, transfers_left_out
from lab.fits.methods import leave_one_out
from lab.tables.collectives import moved
from lab.tables.passes import PassCase, Term, tinychat_prompts
from lab.tables.records import gpu_name, model_name, model_of, records, replica_of
from lab.tables.rows import Floats, Record, read_frame, read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import Gpu, load_gpu, what_if
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime, runtime_across
from simulators.core.fields import point_from, updated
from simulators.kernels.price import price
from simulators.serving.engine.kv_transfer import Transfers
from simulators.serving.point import RDMA, ServingPoint
from simulators.serving.simulator import simulate
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import Step, decode_step, prefill_step
from simulators.workload.operators import Gemm

MUXSERVE = "colocation/muxserve_mps_latency.parquet"
MUXSERVE_GPU, MUXSERVE_RUNTIME = "a100_sxm", "eager"
"""MuxServe's file names no GPU; the paper has A100s of 80 GB. Its vLLM of 2023 launched kernels one
by one."""

LONG_PROMPT = 4096
"""Tokens. The server before the engine takes most of the TTFT of shorter prompts."""

MARLIN_MATRIX = (73_728.0, 18_432.0)
"""Inner length and columns of the product: 1,024 and 256 for each of 72 SMs (IST-DASLab/marlin,
`bench.py`, "ideal")."""

A10_BASE_HZ = 885e6
"""NVIDIA A10 product brief, base clock."""

EXLLAMA_CONTEXT = 128.0
"""Assumed tokens of context: the published decodes are of short texts."""

MEMORY_SHARE = 0.9
"""Share of the GPU's memory that engines reserve by default."""


def losses(
    reference: Path, gpu: str, point: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]
) -> pl.DataFrame:
    """Return the change of S-LoRA's throughput in percent by the first adapter and by all others.

    Our rates are of a closed loop with more clients than fit into memory. The measured rates are at
    one arrival rate, at which the engine without adapters is not quite saturated, so the measured
    loss is a lower bound. Each engine is compared with itself without adapters.

    Args:
        reference: the folder of measured tables.
        gpu: name of the GPU in the table.
        point: the engine.
        settings: model and adapter ranks by the name of S-LoRA's setting.
    """
    rows = []
    for name, setting in settings.items():
        file = f"synthetic/slora/synthetic_num_adapters_{gpu}_{name}_slora.jsonl"
        runs = records(reference, "slora_runs", file=file)
        theirs = {int(run.cfg_num_adapters): float(run.throughput) for run in runs}
        rank = round(float(np.mean(setting["ranks"])))
        engine = point_from(ServingPoint, {**point, "model": setting["model"], "lora.rank": rank})
        ours = {
            count: simulate(updated(engine, {"lora.adapters": count})).requests_per_s
            for count in theirs
        }
        most = max(theirs)
        for change, before, after in (
            ("loss by the first adapter", 0, 1),
            (f"loss from 1 to {most} adapters", 1, most),
        ):
            predicted, measured = (100.0 * (r[after] / r[before] - 1.0) for r in (ours, theirs))
            cells = {"setting": name, "model": setting["model"], "change": change}
            rows.append({**cells, "predicted": predicted, "measured": measured})
    return pl.DataFrame(rows)


def passes(reference: Path) -> pl.DataFrame:
    """Return predicted and measured slowdowns of passes on a share of the SMs, by phase.

    MuxServe's authors timed passes of LLaMA under MPS. Nothing was fitted to these rows.
    """
    frame = read_frame(reference / MUXSERVE).sort("model", "n_gpus", maintain_order=True)
    pass_key = ["model", "n_gpus", "batch", "seq_len"]
    whole = frame.filter(pl.col("mps_pct") == 100.0).unique(pass_key, keep="last")
    shared = frame.filter(pl.col("mps_pct") != 100.0)
    pairs = shared.join(whole, on=pass_key, suffix="_whole", maintain_order="left")
    frames = []
    for (model, gpus, percent), part in pairs.group_by(
        ["model", "n_gpus", "mps_pct"], maintain_order=True
    ):
        ours, alone = (
            _colocated_s(str(model), int(str(gpus)), part, share)
            for share in (float(str(percent)) / 100.0, 1.0)
        )
        for phase, seconds in ours.items():
            measured = (part[f"{phase}_ms"] / part[f"{phase}_ms_whole"]).to_numpy()
            timed = np.isfinite(measured)
            predicted = (seconds / alone[phase])[timed]
            cells = {"phase": phase, "label": f"{model} on {gpus}"}
            frames.append(columns(predicted=predicted, measured=measured[timed], **cells))
    return together(frames)


def _colocated_s(model: str, gpus: int, rows: pl.DataFrame, share: float) -> dict[str, Floats]:
    """Return the seconds of prefill and decode passes on a share of the SMs."""
    sheet, layout = load_gpu(MUXSERVE_GPU), Parallelism(tp=gpus)
    replica = Replica(
        model_of(model),
        what_if(sheet, sm_scale=share),
        cluster_for("auto", sheet),
        layout,
        runtime=runtime_across(load_runtime(MUXSERVE_RUNTIME), layout.width),
    )
    batch, tokens = (rows[name].to_numpy().astype(np.float64) for name in ("batch", "seq_len"))
    steps = {"prefill": prefill_step(batch, tokens), "decode": decode_step(batch, tokens)}
    return {phase: np.asarray(iteration(replica, step).latency_s) for phase, step in steps.items()}


def caches(reference: Path) -> pl.DataFrame:
    """Return predicted over measured seconds of KV transfers, by what is left out of the fit.

    Mooncake's tables: one prefill and one decode replica of eight GPUs each, over RoCE.
    """
    rows = list(moved(reference))
    by_other = leave_one_out(rows, lambda row: row.framework, fit_transfers)
    splits = {
        "each cache by the others of its framework": list(transfers_left_out(rows)),
        "each framework by the other": [(row, known) for some, known in by_other for row in some],
    }
    return pl.DataFrame(
        [
            {"split": split, "predicted": exp(transfer_log_error(row, known)), "measured": 1.0}
            for split, pairs in splits.items()
            for row, known in pairs
        ]
    )


def shares(reference: Path) -> pl.DataFrame:
    """Return the share of the TTFT of long prompts that the KV transfer takes."""
    pairs = transfers_left_out(list(moved(reference)))
    return predict(
        [pair for pair in pairs if pair[0].prompt_tokens >= LONG_PROMPT],
        lambda pair: {
            "predicted": _share_of_ttft(*pair),
            "measured": pair[0].transfer_s / pair[0].ttft_s,
        },
        lambda pair: {"label": f"{pair[0].model}, {pair[0].prompt_tokens:,}"},
    )


def _share_of_ttft(row: Record, known: Transfers) -> float:
    """Return the predicted share for one prompt. Raises Infeasible if the model does not fit."""
    options = {
        "model": row.model,
        "gpu": row.gpu,
        "tp": row.tp,
        "pools.prefill_gpus": row.tp,
        "pools.decode_gpus": row.tp,
        "pools.kv_link": RDMA,
        "pools.kv_link_bytes_per_s": known.share * row.line_bytes_per_s,
        "dtype": "bf16",
        "kv_dtype": "bf16",
        "scheduler": "sglang" if row.framework == "sglang" else "vllm_v1",
        "chunk_size": 8192,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": 2,
        "requests": 1,
        "measurement.warmup": 0,
        "measurement.window": "whole",
    }
    share = simulate(point_from(ServingPoint, options)).kv_transfer_share
    assert share is not None
    return share


def reused(reference: Path) -> pl.DataFrame:
    """Return the TTFT of 32 tokens behind a cached history: TinyChat on an RTX 4090."""
    runtime = load_runtime("eager")
    return predict(
        tinychat_prompts(reference, reused=True),
        lambda case: {"predicted": case.predicted_s(runtime), "measured": case.measured_s},
        lambda case: {"label": f"behind {case.group}"},
    )


def products(reference: Path, clocks: Mapping[str, Sequence[int]]) -> pl.DataFrame:
    """Return speed-ups of a product by 4-bit weights on an A10, by clock.

    Marlin's benchmark, read off a figure to .05, with the clock free or locked at the base.
    `clocks`: by the name of a clock, the batch sizes that are not judged.
    """
    frames = []
    for clock, skipped in clocks.items():
        rows = records(reference, "w4a16_products", clock=clock, kernel="marlin")
        speed_up = {row.batch: row.speedup_vs_fp16 for row in rows if row.batch not in skipped}
        batches, gpu = sorted(speed_up), _a10(clock)
        predicted = _product_s(gpu, batches, "") / _product_s(gpu, batches, "int4")
        measured = np.array([speed_up[batch] for batch in batches])
        frames.append(columns(predicted=predicted, measured=measured, clock=clock))
    return together(frames)


def _a10(clock: str) -> Gpu:
    """Return an A10 at its boost clock, or with its clock locked at the base."""
    gpu = load_gpu("a10")
    if clock != "base_locked":
        return gpu
    slower = A10_BASE_HZ / gpu.clock_hz
    peaks = {dtype: slower * peak for dtype, peak in gpu.peak_flops.items()}
    return dataclasses.replace(gpu, clock_hz=A10_BASE_HZ, peak_flops=peaks)


def _product_s(gpu: Gpu, batches: Sequence[int], weight_dtype: str) -> Floats:
    k, n = MARLIN_MATRIX
    m = np.array(batches, np.float64)
    return price(Gemm(name="product", m=m, n=n, k=k, weight_dtype=weight_dtype), gpu).latency_s


def decodes(reference: Path) -> pl.DataFrame:
    """Return seconds of decodes of ExLlamaV2 with 4-bit weights on an RTX 4090.

    Compiled code launches the layers, so the runtime `graphs` is nearest: with `eager`, the runtime
    of TinyChat's Python, the mean error is 34 % rather than 15 %.
    """
    runtime = load_runtime("graphs")

    def answer(row: Record) -> dict[str, Any]:
        model = model_of(f"{row.family} {row.size}")
        replica = replica_of(model, "rtx_4090", dtype="w4a16", kv_dtype="fp16", runtime=runtime)
        terms = (Term(decode_step(1.0, EXLLAMA_CONTEXT)),)
        case = PassCase(model.name, replica, terms, 1.0 / row.tokens_per_s_bs1)
        predicted_s = case.predicted_s(runtime)
        return {"label": model.name, "predicted": predicted_s, "measured": case.measured_s}

    return predict(records(reference, "exllama", gpu="RTX4090", bits_per_weight=4.0), answer)


def prompts(
    reference: Path, gpu: str, model: str, tables: Mapping[str, str], all_logits: Sequence[str]
) -> pl.DataFrame:
    """Return the TTFT of prompts, by engine.

    Args:
        reference: the folder of measured tables.
        gpu: name of the GPU in the tables.
        model: the model of the tables without a column for it.
        tables: the table in fp16, and the table of several engines in 4 bits.
        all_logits: engines that compute the logits of every token of a prompt.
    """
    fp16 = read_records(reference / tables["fp16"], gpu=gpu)
    rows = [("TinyChat in fp16", row.model, "fp16", row, row.fp16_ttft_s) for row in fp16]
    rows += [
        (f"{row.system} in 4 bits", model, "w4a16", row, row.w4_ttft_s)
        for row in read_records(reference / tables["w4a16"])
    ]
    found = []
    for engine, name, dtype, row, measured_s in rows:
        options = {"dtype": dtype, "kv_dtype": "fp16", "runtime": load_runtime("eager")}
        replica = replica_of(model_name(name), gpu_name(gpu), **options)
        tokens = float(row.prompt_tokens)
        step = prefill_step(1.0, tokens)
        if engine in all_logits:
            step = dataclasses.replace(step, logits_rows=tokens)
        cells = {"engine": engine, "label": f"{name}, {tokens:,.0f} tokens"}
        found.append({**cells, "predicted": _pass_s(replica, step), "measured": measured_s})
    return pl.DataFrame(found)


def max_throughputs(
    reference: Path, table: str, prompt: float, output: float, systems: Mapping[str, str]
) -> pl.DataFrame:
    """Return output tokens per second of Llama-2-70B on an A100: the largest batch that fits.

    The batch is prefilled at once and decoded to its end (mit-han-lab/omniserve).

    Args:
        reference: the folder of measured tables.
        table: published throughputs; 0 where the model does not fit.
        prompt: tokens of a prompt.
        output: tokens of an answer.
        systems: dtype by the name of the system.
    """
    published = read_records(reference / table, model="Llama-2-70B", gpu="A100-80GB")
    measured = {row.system: float(row.max_tokens_s_0_is_oom) for row in published}
    return pl.DataFrame(
        [
            {
                "label": system,
                "predicted": _tokens_per_s(dtype, prompt, output),
                "measured": measured[system],
            }
            for system, dtype in systems.items()
        ]
    )


def _tokens_per_s(dtype: str, prompt: float, output: float) -> float:
    """Return the throughput of the largest batch that fits; 0 if no request fits."""
    runtime = load_runtime("trtllm_session")
    options = {"dtype": dtype, "kv_dtype": "fp16", "framework": "trtllm", "runtime": runtime}
    replica = replica_of("llama2_70b", "a100_sxm", **options)
    free_bytes = MEMORY_SHARE * replica.gpu.hbm_bytes
    free_bytes -= weight_bytes(replica.model, replica.layout, replica.dtype)
    request = kv_bytes_per_token(replica.model, replica.layout, replica.kv_dtype) * (
        prompt + output
    )
    batch = float(np.floor(free_bytes / request))
    if batch < 1.0:
        return 0.0
    contexts = prompt + output * (np.arange(9) + 0.5) / 9.0
    decode_s = np.mean([_pass_s(replica, decode_step(batch, one)) for one in contexts.tolist()])
    prefill_s = _pass_s(replica, prefill_step(batch, prompt))
    return float(batch * output / (prefill_s + (output - 1.0) * decode_s))


def _pass_s(replica: Replica, step: Step) -> float:
    return float(iteration(replica, step).latency_s)
