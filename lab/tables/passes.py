"""Measured forward passes, layers and static batches of language models, with the steps they ran.

VIDUR's layer tables (Agrawal et al., 2024) hold medians of the linear operators of one layer on one
rank. They ran vLLM's kernels of their time in loops that keep a GPU busy: residual sums, norms and
rotary embeddings are separate kernels. Static batches are those of TensorRT-LLM's session runtime
of 2023 and 2024, as NVIDIA published them: one prefill of all prompts, then decodes of all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.tables.records import GPUS, file_of, gpu_name, is_model, model_name, records, replica_of
from lab.tables.rows import Record, read_frame, read_records
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.adjustments import throttled_s
from simulators.composition.operator_prices import compute_rows
from simulators.composition.price import part_rows
from simulators.composition.replica import EVERYTHING, Effects, Replica, Runtime
from simulators.core.folder import read_toml
from simulators.core.jit import Floats
from simulators.workload.llm.parallelism import Parallelism, Stage, stage_of
from simulators.workload.llm.step import Shard, Step, chunk_step, decode_step, prefill_step
from simulators.workload.llm.transformer import token_operators
from simulators.workload.operators import Collective

FACTS = Record(read_toml(Path(__file__).with_suffix(".toml")))

STATIC = file_of("static_batches")

SESSION = "trtllm_session"  # TensorRT-LLM's runtime before PyTorch


NO_RUNTIME = Runtime(name="none", layer_s=0.0, host_s=0.0, sequence_s=0.0)
"""Kernels and messages alone; the runtime of a case is given with the prediction."""


@dataclass(frozen=True)
class StaticBatch:
    """One measured static batch and its output tokens per second."""

    version: str
    model: str
    gpu: str
    precision: str
    tp: int
    batch: int
    prompt: int
    output: int
    tokens_per_s: float

    @property
    def group(self) -> str:
        """The model and GPU, which are held out together."""
        return f"{self.model}.{self.gpu}"

    @property
    def shares_keys(self) -> bool:
        """Whether the release has XQA; without it every head reads the keys of its group."""
        return bool(self.version >= FACTS.xqa_since)

    @property
    def measured_s(self) -> float:
        """Seconds of the batch."""
        return self.batch * self.output / self.tokens_per_s

    def replica(self, runtime: Runtime) -> Replica:
        """Return the replica that ran the batch, under a runtime."""
        precision = {"dtype": self.precision, "kv_dtype": self.precision}
        layout = Parallelism(tp=self.tp)
        return replica_of(self.model, self.gpu, layout=layout, runtime=runtime, **precision)


def static_rows(reference: Path) -> list[StaticBatch]:
    """Return the static batches, each from the last release with it, without ambiguous rows."""
    found = {}
    for row in sorted(records(reference, "static_batches"), key=lambda row: str(row.doc_tag)):
        if row.doc_tag == FACTS.ambiguous and row.tp_size > 1:
            continue
        load = (int(row.tp_size), int(row.batch_size), int(row.isl), int(row.osl))
        engine = (model_name(row.model), row.gpu, row.precision)
        rate = row.output_tokens_per_s_total
        found[engine, load] = StaticBatch(row.doc_tag, *engine, *load, rate)
    return list(found.values())


@dataclass(frozen=True)
class Term:
    """A step, the number of its runs in a measurement, and whether each run was launched."""

    step: Step
    times: float = 1.0
    is_launched: bool = True


@dataclass(frozen=True, eq=False)
class PassCase:
    """A measured forward pass: replica, steps and seconds.

    `is_test`: no fit uses the group of the pass.
    """

    group: str
    replica: Replica
    terms: tuple[Term, ...]
    measured_s: float
    is_test: bool = True
    is_tokenised: bool = False  # the measurement includes the host's work on the text
    is_scheduled: bool = True  # a host schedules the batch of each iteration

    def predicted_s(self, runtime: Runtime, effects: Effects = EVERYTHING) -> float:
        """Return predicted seconds under a runtime, with the given effects besides kernels."""
        waits = effects.synchronisation and self.is_scheduled
        effects = dataclasses.replace(effects, synchronisation=waits)
        layers, cluster = self.replica.model.layers, self.replica.cluster
        total, busy = 0.0, self._busy_s(runtime.is_fused and effects.fusion, effects.clocks)
        for term, busy_s in zip(self.terms, busy, strict=True):
            step = term.step
            sequences = float(step.prefills) + float(step.decodes)
            launch_s = runtime.launch_s(
                layers, sequences, busy_s, cluster, prefills=step.prefills, effects=effects
            )
            total += term.times * (busy_s + term.is_launched * float(launch_s))
            if self.is_tokenised and effects.prompt:
                total += float(runtime.prompt_s(step.prefill_tokens, step.prefills, cluster))
        return total

    @functools.cache  # noqa: B019 - cases last as long as their table, and fits ask repeatedly
    def _busy_s(self, fused: bool, clocks: bool) -> tuple[float, ...]:
        effects = Effects(fusion=fused, clocks=clocks)
        replica = dataclasses.replace(self.replica, effects=effects)
        part = stage_of(replica.model, replica.layout, 0)
        return tuple(
            sum(float(np.asarray(row.seconds)) for row in part_rows(replica, term.step, part))
            for term in self.terms
        )


def splitwise(reference: Path, phase: str) -> Iterator[PassCase]:
    """Yield prompt or token times of Llama-2-70B on A100 and H100 (Patel et al., 2024).

    Rows marked as synthetic were derived, not measured. Some batches ran their prompts one after
    another, so only single prompts are kept. Fits use the rows, except those at tp 4.
    """
    is_prompt = phase == "prompt"
    for row in _known_rows(reference / FACTS.splitwise, gpu="hardware"):
        batch, prompt = float(row.batch_size), float(row.prompt_size)
        if row.synthetic_pcap or (is_prompt and batch > 1):
            continue
        context = prompt + row.token_size / 2.0
        step = prefill_step(batch, prompt) if is_prompt else decode_step(batch, context)
        tp, seconds = int(row.tensor_parallel), row[f"{phase}_time"] * 1e-3
        replica = _replica(row.model, row.hardware, tp, "fp16", framework="vllm")
        group = f"{replica.gpu.name} tp{tp}"
        yield PassCase(group, replica, (Term(step),), seconds, tp == 4, is_tokenised=is_prompt)


def tinychat(reference: Path, column: str) -> Iterator[PassCase]:
    """Yield decodes of one sequence with four tokens of context, in fp16 or with 4-bit weights.

    Fits use those on A100.
    """
    dtype = "fp16" if column == "fp16_ms_per_token" else "w4a16"
    for row in _known_rows(reference / FACTS.tinychat):
        if row[column] is not None:
            gpu = gpu_name(row.gpu)
            replica, terms = _replica(row.model, gpu, 1, dtype), (Term(decode_step(1.0, 4.0)),)
            yield PassCase(gpu, replica, terms, row[column] * 1e-3, is_test=gpu != "a100_sxm")


def tinychat_prompts(reference: Path, *, reused: bool) -> Iterator[PassCase]:
    """Yield the TTFT of a question behind a cached or recomputed history, 4 bits, RTX 4090.

    Fits use recomputed histories no longer than the question. Longer ones take, for an unknown
    reason, 1.5 times as long as the same page states for prompts of that length.
    """
    column = "w4_kv_reuse_ttft_ms" if reused else "w4_no_reuse_ttft_ms"
    for row in read_records(reference / FACTS.reuse):
        history = float(row.history_tokens)
        whole = prefill_step(1.0, history + FACTS.question)
        terms = (Term(chunk_step(FACTS.question, history, 1.0) if reused else whole),)
        replica, is_test = _replica("LLaMA-3-8B", "RTX4090", 1, "w4a16"), history > FACTS.question
        yield PassCase(f"{history:,.0f}", replica, terms, row[column] * 1e-3, reused or is_test)


def concurrent(reference: Path, gpu: str) -> Iterator[PassCase]:
    """Yield the TPOT of dense Llama-3.1 at a fixed concurrency.

    While a request decodes, each other client prefills once in as many iterations as a request has
    output tokens; a prompt joins an iteration that is launched anyway. Rows with more than
    `MIXED_TOKENS` prompt tokens per iteration are left out: the scheduler decides there. Fits use
    H100, except at tp 4.
    """
    for row in read_records(reference / FACTS.concurrent, gpu=gpu, mode="agg"):
        if not (is_model(row.model) and model_name(row.model).startswith("llama3_1_")):
            continue
        clients = float(row.concurrency)
        output, prompt = FACTS.mean_length * row.osl, FACTS.mean_length * row.isl
        prompts = (clients - 1.0) / output
        if prompts * prompt > FACTS.mixed_tokens:
            continue
        dtype = row.precision if row.precision in ("fp8", "fp4") else "bf16"
        # Recipes of quantized checkpoints store the KV cache in 8 bits (InferenceX, 70b_*.sh).
        kv_dtype, tp = "bf16" if dtype == "bf16" else "fp8", int(row.tp_size)
        replica = _replica(row.model, gpu, tp, dtype, kv_dtype, row.framework)
        terms = (
            Term(decode_step(clients, prompt + output / 2.0)),
            Term(prefill_step(1.0, prompt), prompts, is_launched=False),
        )
        group = f"{row.framework} {replica.model.name} tp{tp}"
        yield PassCase(group, replica, terms, row.tpot_ms * 1e-3, gpu != "h100_sxm" or tp == 4)


def static_batches(reference: Path, version: str) -> Iterator[PassCase]:
    """Yield static batches of LLaMA 7B (the shape of Llama-2-7B) and 70B of one release."""
    llama = ["LLaMA 7B", "LLaMA 70B"]
    for row in records(reference, "static_batches", model=llama, doc_tag=version):
        batch, prompt, output = (float(row[c]) for c in ("batch_size", "isl", "osl"))
        tp = int(row.tp_size)
        replica = _replica(row.model, row.gpu, tp, row.precision, kv_dtype=row.precision)
        points = [(i + 0.5) / FACTS.decode_points for i in range(FACTS.decode_points)]
        decodes = [
            Term(decode_step(batch, prompt + at * output), (output - 1.0) / FACTS.decode_points)
            for at in points
        ]
        terms = (Term(prefill_step(batch, prompt)), *decodes)
        seconds = batch * output / row.output_tokens_per_s_total
        group = f"{replica.gpu.name} {replica.model.name} tp{tp}"
        yield PassCase(group, replica, terms, seconds, is_scheduled=False)


def _known_rows(path: Path, gpu: str = "gpu") -> Iterator[Record]:
    for row in read_records(path):
        if is_model(row.model) and row[gpu] in GPUS:
            yield row


def _replica(
    model: str, gpu: str, tp: int, dtype: str, kv_dtype: str = "fp16", framework: str = ""
) -> Replica:
    more: dict[str, Any] = {"runtime": NO_RUNTIME, "framework": framework}
    precision = {"dtype": dtype, "kv_dtype": kv_dtype}
    layout = Parallelism(tp=tp)
    return replica_of(model_name(model), gpu_name(gpu), layout=layout, **precision, **more)


READERS = {one.__name__: one for one in (splitwise, tinychat, concurrent, static_batches)}


@dataclass(frozen=True)
class PassTable:
    """A table of measured passes, its reader, and the runtime it was measured under."""

    name: str
    path: str
    read: Callable[[Path, str], Iterator[PassCase]]
    argument: str  # of the reader
    runtime: str

    @functools.cache  # noqa: B019 - tables are few and last; cases remember their prices
    def cases(self, reference: Path) -> Sequence[PassCase]:
        """Return the rows of the table, read and priced once."""
        return tuple(self.read(reference, self.argument))


TABLES = tuple(
    PassTable(name, FACTS.get(reader, STATIC), READERS[reader], argument, runtime)
    for name, (reader, argument, runtime) in FACTS.passes.items()
)


KERNEL_BY_KERNEL = Effects(fusion=False, clocks=False)
ONE_LAYER = Stage(dense_layers=1, expert_layers=0, has_embedding=False, has_head=False)


@dataclass(frozen=True)
class LayerRows:
    """Measured layers of a model on a rank of a GPU, by number of tokens."""

    replica: Replica
    model: str  # name in the table
    tokens: Floats
    measured_s: Floats

    @property
    def is_test(self) -> bool:
        """Whether no fit uses the model."""
        return self.model in FACTS.held_out_models

    @functools.cached_property
    def work_s(self) -> tuple[Floats, Floats]:
        """Predicted seconds at full clocks, and the least seconds of the matrix units."""
        replica = self.replica
        shard = Shard(replica.model, replica.layout, ONE_LAYER, replica.dtype)
        rows = compute_rows(token_operators(shard, self.tokens), replica, "tokens")
        kept = [row for row in rows if row.operator.name not in FACTS.not_timed]
        matrix_s = np.zeros_like(self.tokens)
        for row in kept:
            assert not isinstance(row.operator, Collective)
            matrix_s = matrix_s + throttled_s(row.operator, replica.gpu, 1.0)
        kernels = [np.broadcast_to(row.seconds, self.tokens.shape) for row in kept]
        return np.sum(kernels, axis=0), matrix_s

    def predicted_s(self, throttling: float) -> Floats:
        """Return predicted seconds; `throttling`: extra share of the matrix units' time."""
        kernels_s, matrix_s = self.work_s
        return kernels_s + throttling * matrix_s


def layer_rows(reference: Path) -> list[LayerRows]:
    """Return the measured layers of every GPU, model and tensor parallel degree."""
    times = {f"{name}_ms": count for name, count in FACTS.timed_operators.items()}
    wanted = {"source": FACTS.layer_source, "gpu": list(FACTS.layer_gpus)}
    frame = read_frame(reference / FACTS.linear, **wanted).drop_nulls([*times])
    found = []
    for (gpu, model, tp), rows in frame.group_by("gpu", "model", "tp", maintain_order=True):
        more = {"framework": "vllm", "effects": KERNEL_BY_KERNEL}
        shape, layout = _one_layer_model(Record(rows.row(0, named=True))), Parallelism(tp=int(tp))
        replica = replica_of(shape, FACTS.layer_gpus[gpu], layout=layout, **more)
        tokens = rows["num_tokens"].cast(pl.Float64).to_numpy()
        layer_ms = sum(
            rows[name].cast(pl.Float64).to_numpy() * count for name, count in times.items()
        )
        found.append(LayerRows(replica, str(model), tokens, layer_ms * 1e-3))
    return found


def _one_layer_model(row: Record) -> LanguageModel:
    return dataclasses.replace(
        load_model("llama2_7b"),
        name=row.model,
        layers=1,
        hidden=int(row.n_embd),
        heads=int(row.n_q_head),
        kv_heads=int(row.n_kv_head),
        head_dim=int(row.n_embd) // int(row.n_q_head),
        ffn=int(row.mlp_hidden),
        vocab=int(row.vocab_size),
    )
