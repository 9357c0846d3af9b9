"""4-bit weights: products, decodes, prompts and maximal throughput, beside published ones.

Products are those of Marlin's benchmark on an A10, read off a figure to 0.05, with its clock free
or locked at the base. Prompts are TinyChat's (mit-han-lab/llm-awq) on an RTX 4090; the default of
Hugging Face, and TinyChat until 2.0, compute the logits of every token of a prompt. Throughputs are
those of Llama-2-70B on one A100 of 80 GB, 1,024 tokens in and 512 out: the largest batch that fits
is prefilled at once and decoded to its end (mit-han-lab/omniserve).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, predict, together
from lab.tables.catalog_names import gpu_name, model_name, replica_of
from lab.tables.modern.weight_formats import MATRIX, exllama_decodes, gpu_at, speed_ups
from lab.tables.rows import Floats, read_records
from simulators.catalog.gpu import Gpu
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime
from simulators.kernels.price import price
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.step import Step, decode_step, prefill_step
from simulators.workload.operators import Gemm

MEMORY_SHARE = 0.9
"""Of the GPU's memory; as engines reserve it by default."""


def products(reference: Path, clocks: Mapping[str, Sequence[int]]) -> pl.DataFrame:
    """Return speed-ups of a product by 4-bit weights, by clock.

    Args:
        reference: the folder of reference tables.
        clocks: by the name of a clock, the rows of a product that are not judged.
    """
    frames = []
    for clock, aside in clocks.items():
        published = speed_ups(reference, clock)["marlin"]
        rows = [row for row in published if row not in aside]
        gpu = gpu_at(clock)
        ours = _product_s(gpu, rows, "") / _product_s(gpu, rows, "int4")
        theirs = np.array([published[row] for row in rows])
        frames.append(columns(predicted=ours, measured=theirs, clock=clock))
    return together(frames)


def _product_s(gpu: Gpu, rows: Sequence[int], stored: str) -> Floats:
    """Return the seconds of the product by rows, with weights stored in a format or in fp16."""
    k, n = map(float, MATRIX)
    product = Gemm(name="product", m=np.array(rows, np.float64), n=n, k=k, weight_dtype=stored)
    return price(product, gpu).latency_s


def decodes(reference: Path) -> pl.DataFrame:
    """Return seconds of decodes of ExLlamaV2 with 4-bit weights."""
    return predict(
        exllama_decodes(reference),
        lambda case: {
            "predicted": case.predicted_s(case.replica.runtime),
            "measured": case.measured_s,
        },
        lambda case: {"label": case.replica.model.name},
    )


def prompts(
    reference: Path, gpu: str, model: str, tables: Mapping[str, str], all_logits: Sequence[str]
) -> pl.DataFrame:
    """Return seconds to the first token of prompts, by engine.

    Args:
        reference: the folder of reference tables.
        gpu: as the tables call it.
        model: of the tables without a column for it.
        tables: in fp16, and of several engines in 4 bits.
        all_logits: engines that compute the logits of every token.
    """
    fp16 = read_records(reference / tables["fp16"], gpu=gpu)
    rows = [("TinyChat in fp16", row["model"], "fp16", row, row["fp16_ttft_s"]) for row in fp16]
    rows += [
        (f"{row['system']} in 4 bits", model, "w4a16", row, row["w4_ttft_s"])
        for row in read_records(reference / tables["w4a16"])
    ]
    found = []
    for engine, name, dtype, row, measured_s in rows:
        replica = replica_of(
            model_name(name),
            gpu_name(gpu),
            dtype=dtype,
            kv_dtype="fp16",
            runtime=load_runtime("eager"),
        )
        tokens = float(row["prompt_tokens"])
        step = prefill_step(1.0, tokens)
        if engine in all_logits:
            step = dataclasses.replace(step, logits_rows=tokens)
        label = f"{name}, {tokens:,.0f} tokens"
        cells = {"engine": engine, "label": label, "measured": measured_s}
        found.append({**cells, "predicted": _pass_s(replica, step)})
    return pl.DataFrame(found)


def throughputs(
    reference: Path, table: str, prompt: float, output: float, systems: Mapping[str, str]
) -> pl.DataFrame:
    """Return tokens per second of the largest batch that fits, of systems in which one fits.

    Args:
        reference: the folder of reference tables.
        table: of published throughputs; 0 where the model does not fit.
        prompt: tokens of a request.
        output: the same of its answer.
        systems: their precision by their name.
    """
    published = read_records(reference / table, model="Llama-2-70B", gpu="A100-80GB")
    theirs = {row["system"]: row["max_tokens_s_0_is_oom"] for row in published}
    return pl.DataFrame(
        [
            {
                "label": system,
                "predicted": _tokens_per_s(dtype, prompt, output),
                "measured": float(theirs[system]),
            }
            for system, dtype in systems.items()
        ]
    )


def _tokens_per_s(dtype: str, prompt: float, output: float) -> float:
    """Return the output tokens a second of the largest batch that fits; 0 where none does."""
    replica = replica_of(
        "llama2_70b",
        "a100_sxm",
        dtype=dtype,
        kv_dtype="fp16",
        framework="trtllm",
        runtime=load_runtime("trtllm_session"),
    )
    free_bytes = MEMORY_SHARE * replica.gpu.hbm_bytes
    free_bytes -= weight_bytes(replica.model, replica.cut, replica.dtype)
    request = kv_bytes_per_token(replica.model, replica.cut, replica.kv_dtype) * (prompt + output)
    batch = float(np.floor(free_bytes / request))
    if batch < 1.0:
        return 0.0
    contexts = prompt + output * (np.arange(9) + 0.5) / 9.0
    decode_s = np.mean([_pass_s(replica, decode_step(batch, one)) for one in contexts.tolist()])
    prefill_s = _pass_s(replica, prefill_step(batch, prompt))
    return float(batch * output / (prefill_s + (output - 1.0) * decode_s))


def _pass_s(replica: Replica, step: Step) -> float:
    return float(iteration(replica, step).latency_s)
