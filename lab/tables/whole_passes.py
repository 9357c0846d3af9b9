"""Measured whole-model times, each with the steps a replica had to run in it.

The tables are read from the reference folder. Their models and GPUs go by other names, which are
matched here; rows of models that are not in the catalog are left out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.price import part_rows
from simulators.composition.replica import EVERYTHING, Effects, Replica, Runtime
from simulators.composition.throttling import slowdown, throttled_s
from simulators.workload.llm.parallelism import Parallelism, stage_of
from simulators.workload.llm.step import Step, decode_step, prefill_step
from simulators.workload.operators import Collective

SPLITWISE = "serving_modern/splitwise_perf_model.parquet"
TINYCHAT = "quantization/awq_tinychat_decode_bs1.parquet"
CONCURRENT = "serving_measured/inferencex_aic_silicon.parquet"
STATIC = "serving_measured/trtllm_static_batch_2023_2024.parquet"

NAMES = {
    "llama2-70b": "llama2_70b",
    "LLaMA 7B": "llama2_7b",
    "LLaMA 70B": "llama2_70b",
    "LLaMA-2-7B": "llama2_7b",
    "LLaMA-2-13B": "llama2_13b",
    "LLaMA-3-8B": "llama3_1_8b",
    "Vicuna-7B": "llama2_7b",
    "Vicuna-13B": "llama2_13b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_1_8b",
    "meta-llama/Llama-3.1-70B": "llama3_1_70b",
    "a100-80gb": "a100_sxm",
    "h100-80gb": "h100_sxm",
    "A100-80GB": "a100_sxm",
    "RTX4090": "rtx_4090",
}

MIXED_TOKENS = 64.0
"""So many prompt tokens cost a decode iteration little: it is bound by memory."""

MEAN_LENGTH = 0.9
"""The client of the concurrent table draws lengths evenly between 0.8 and 1 of the stated ones."""


@dataclass(frozen=True)
class Term:
    """A step, how often it ran within what was measured, and whether it was launched for itself."""

    step: Step
    times: float = 1.0
    is_launched: bool = True


@dataclass(frozen=True)
class Case:
    """One measurement: what ran on which replica, and how long it took.

    `is_test` says that its whole group is kept out of every fit.
    """

    group: str
    replica: Replica
    terms: tuple[Term, ...]
    measured_s: float
    is_test: bool = True
    is_tokenised: bool = False  # the host's work on the text is part of what was measured
    is_scheduled: bool = True  # a host chooses the batch of each iteration

    def predicted_s(self, runtime: Runtime, effects: Effects = EVERYTHING) -> float:
        """Return our time for it under a runtime, with what is counted besides kernels."""
        waits = effects.synchronisation and self.is_scheduled
        effects = dataclasses.replace(effects, synchronisation=waits)
        share = slowdown(self.replica.gpu)
        fused = runtime.is_fused and effects.fusion
        total = 0.0
        for term, (kernels_s, matrix_s) in zip(self.terms, self._work_s[fused], strict=True):
            step, cluster = term.step, self.replica.cluster
            busy_s = kernels_s + share * matrix_s * effects.clocks
            sequences = float(step.prefills) + float(step.decodes)
            launch_s = runtime.launch_s(
                self.replica.model.layers,
                sequences,
                busy_s,
                cluster,
                prefills=step.prefills,
                effects=effects,
            )
            total += term.times * (busy_s + term.is_launched * float(launch_s))
            if self.is_tokenised and effects.prompt:
                total += float(runtime.prompt_s(step.prefill_tokens, step.prefills, cluster))
        return total

    @functools.cached_property
    def _work_s(self) -> dict[bool, tuple[tuple[float, float], ...]]:
        """Return, fused and not, each term's kernels and messages, and its least matrix time."""
        return {fused: tuple(self._term_s(term, fused) for term in self.terms) for fused in BOTH}

    def _term_s(self, term: Term, fused: bool) -> tuple[float, float]:
        effects = Effects(fusion=fused, clocks=False)
        model, cut = self.replica.model, self.replica.cut
        replica = dataclasses.replace(self.replica, effects=effects)
        rows = part_rows(replica, term.step, stage_of(model, cut, 0))
        matrix_s = sum(
            float(throttled_s(row.operator, replica.gpu, 1.0)) * row.operator.repeat
            for row in rows
            if not isinstance(row.operator, Collective) and np.any(row.seconds)
        )
        return sum(float(np.asarray(row.seconds)) for row in rows), matrix_s


BOTH = (False, True)


def splitwise(reference: Path, phase: str) -> list[Case]:
    """Return prompt or token times of Llama-2-70B on A100 and H100 (Patel et al., 2024).

    Rows marked as synthetic were derived, not measured. Prompts of a batch ran one after another
    in some rows; only single prompts are kept. Both are fitted to, but for tp 4.
    """
    cases = []
    for row in _rows(reference / SPLITWISE):
        if row["model"] not in NAMES or row["synthetic_pcap"] or row["hardware"] not in NAMES:
            continue
        batch, prompt = float(row["batch_size"]), float(row["prompt_size"])
        if phase == "prompt" and batch > 1:
            continue
        context = prompt + row["token_size"] / 2.0
        step = prefill_step(batch, prompt) if phase == "prompt" else decode_step(batch, context)
        replica = _replica(
            row["model"], row["hardware"], row["tensor_parallel"], "fp16", framework="vllm"
        )
        cases.append(
            Case(
                f"{replica.gpu.name} tp{replica.cut.tp}",
                replica,
                (Term(step),),
                row[f"{phase}_time"] * 1e-3,
                is_test=replica.cut.tp == 4,
                is_tokenised=phase == "prompt",
            )
        )
    return cases


def tinychat(reference: Path, column: str) -> list[Case]:
    """Return decode times at batch 1 and four tokens of context, in fp16 or with 4-bit weights.

    Those on A100 are fitted to.
    """
    dtype = "fp16" if column == "fp16_ms_per_token" else "w4a16"
    return [
        Case(
            NAMES[row["gpu"]],
            _replica(row["model"], row["gpu"], 1, dtype),
            (Term(decode_step(1.0, 4.0)),),
            row[column] * 1e-3,
            is_test=NAMES[row["gpu"]] != "a100_sxm",
        )
        for row in _rows(reference / TINYCHAT)
        if row["model"] in NAMES and row["gpu"] in NAMES and row[column] is not None
    ]


def concurrent(reference: Path, gpu: str) -> list[Case]:
    """Return times per output token of dense Llama-3.1 at a fixed number of clients.

    While a request decodes, each of the others is prefilled once in as many iterations as a
    request has output tokens; a prompt joins an iteration that is launched anyway. Rows in which
    more than `MIXED_TOKENS` of prompt join an iteration are left out: there the scheduler decides.
    Only H100 is fitted to, and of it not tp 4.
    """
    cases = []
    for row in _rows(reference / CONCURRENT):
        if row["model"] not in NAMES or row["gpu"] != gpu or row["mode"] != "agg":
            continue
        clients, output = float(row["concurrency"]), MEAN_LENGTH * row["osl"]
        prompt = MEAN_LENGTH * row["isl"]
        prompts = (clients - 1.0) / output
        if prompts * prompt > MIXED_TOKENS:
            continue
        dtype = {"fp8": "fp8", "fp4": "fp4"}.get(row["precision"] or "", "bf16")
        # The recipes of narrow checkpoints store keys and values in 8 bits (InferenceX, 70b_*.sh).
        kv_dtype = "bf16" if dtype == "bf16" else "fp8"
        replica = _replica(row["model"], gpu, row["tp_size"], dtype, kv_dtype, row["framework"])
        terms = (
            Term(decode_step(clients, prompt + output / 2.0)),
            Term(prefill_step(1.0, prompt), prompts, is_launched=False),
        )
        group = f"{row['framework']} {replica.model.name} tp{replica.cut.tp}"
        is_test = gpu != "h100_sxm" or replica.cut.tp == 4
        cases.append(Case(group, replica, terms, row["tpot_ms"] * 1e-3, is_test))
    return cases


def static_batches(reference: Path, version: str) -> list[Case]:
    """Return whole static batches of LLaMA 7B and 70B in one release of TensorRT-LLM.

    A batch is one prefill of all prompts and a decode for each further token, with no scheduler
    between them: the benchmark is a program around the engine. The 7B model is Llama-2-7B in shape.
    """
    cases = []
    for row in _rows(reference / STATIC):
        known = row["model"] in NAMES and row["gpu"] in ("a100_sxm", "h100_sxm", "l40s")
        if not known or row["doc_tag"] != version or not row["output_tokens_per_s_total"]:
            continue
        batch, prompt, output = (float(row[c]) for c in ("batch_size", "isl", "osl"))
        dtype = row["precision"]
        replica = _replica(row["model"], row["gpu"], row["tp_size"], dtype, kv_dtype=dtype)
        # Nine points of the decodes stand for all of them: their time grows evenly with context.
        points = [(i + 0.5) / 9.0 for i in range(9)]
        decodes = [
            Term(decode_step(batch, prompt + at * output), (output - 1.0) / 9.0) for at in points
        ]
        terms = (Term(prefill_step(batch, prompt)), *decodes)
        measured_s = batch * output / row["output_tokens_per_s_total"]
        group = f"{replica.gpu.name} {replica.model.name} tp{replica.cut.tp}"
        cases.append(Case(group, replica, terms, measured_s, is_scheduled=False))
    return cases


def _replica(
    model: str, gpu: str, tp: int, dtype: str, kv_dtype: str = "fp16", framework: str = ""
) -> Replica:
    board = load_gpu(NAMES.get(gpu, gpu))
    return Replica(
        model=load_model(NAMES[model]),
        gpu=board,
        cluster=cluster_for("auto", board),
        cut=Parallelism(tp=int(tp)),
        dtype=dtype,
        kv_dtype=kv_dtype,
        runtime=NO_RUNTIME,
        framework=framework,
    )


NO_RUNTIME = Runtime(name="none", layer_s=0.0, host_s=0.0, sequence_s=0.0)
"""Kernels and messages alone; a case is told its runtime when it is predicted."""


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows
