"""Claims on adapters, co-location, KV transfer, prefix reuse, weight formats and speculation.

Spec-Bench times one sequence of Vicuna under Hugging Face transformers. The speed-up is measured
tokens per iteration times the seconds of a plain pass, over the seconds of drafting and verifying.
A tree is verified in one pass with a row per node and one for the root. Sizes are those of the
benchmark (hemingkx/Spec-Bench, `evaluation/inference_*.py`); none is fitted.

The host bounds HF's loops: it launches the kernels of every layer one by one. Each pass, also of a
draft head, and each acceptance costs the host the time of three more layers. Of 2, 3 and 4 layers,
3 is best with a method left out (4 without the draft model's, whose error is then 5 % and not 1 %).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import bisect

from lab.claims.claim import Cells, columns, figures, predict
from lab.fits.collectives import fit_transfers, transfer_log_error, transfers_left_out
from lab.fits.deployments import rank_wait_without
from lab.fits.methods import leave_one_out
from lab.tables.collectives import moved
from lab.tables.disaggregated import PooledRun, drawn_runs
from lab.tables.passes import tinychat_prompts
from lab.tables.records import extra_model, gpu_name, model_name, model_of, records, replica_of
from lab.tables.rows import Floats, Record, read_frame, read_records
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import Gpu, load_gpu, what_if
from simulators.catalog.model import LanguageModel
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime, runtime_across
from simulators.core.fields import point_from, updated
from simulators.kernels.price import price
from simulators.serving.deployment import deployment_of
from simulators.serving.engine.kv_transfer import Transfers
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import drafted_s, prices_of
from simulators.serving.run import RunCache
from simulators.serving.simulator import simulate
from simulators.serving.speculation import dense_layer, drafter_of, mean_acceptance_length, survival
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.parallelism import HIGH_THROUGHPUT, LOW_LATENCY, Parallelism
from simulators.workload.llm.step import Step, chunk_step, decode_step, prefill_step
from simulators.workload.operators import Gemm

MUXSERVE = "colocation/muxserve_mps_latency.parquet"


def losses(
    reference: Path, gpu: str, point: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]
) -> Iterator[Cells]:
    """Yield the change of S-LoRA's throughput in percent by the first adapter and by all others.

    Our rates are of a closed loop with more clients than fit into memory. The measured rates are at
    one arrival rate, at which the engine without adapters is not quite saturated, so the measured
    loss is a lower bound. Each engine is compared with itself without adapters. `settings`: model
    and adapter ranks by the name of S-LoRA's setting.
    """
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
            yield {**cells, "predicted": predicted, "measured": measured}


def passes(reference: Path, gpu: str, runtime: str) -> Iterator[pl.DataFrame]:
    """Yield predicted and measured slowdowns of passes on a share of the SMs, by phase.

    MuxServe's authors timed passes of LLaMA under MPS. Nothing was fitted to these rows.
    """
    frame = read_frame(reference / MUXSERVE).sort("model", "n_gpus", maintain_order=True)
    pass_key = ["model", "n_gpus", "batch", "seq_len"]
    whole = frame.filter(pl.col("mps_pct") == 100.0).unique(pass_key, keep="last")
    shared = frame.filter(pl.col("mps_pct") != 100.0)
    pairs = shared.join(whole, on=pass_key, suffix="_whole", maintain_order="left")
    for (model, gpus, percent), part in pairs.group_by(
        ["model", "n_gpus", "mps_pct"], maintain_order=True
    ):
        ours, alone = (
            _colocated_s(
                what_if(load_gpu(gpu), sm_scale=share), runtime, model_of(str(model)), part
            )
            for share in (float(str(percent)) / 100.0, 1.0)
        )
        for phase, seconds in ours.items():
            measured = (part[f"{phase}_ms"] / part[f"{phase}_ms_whole"]).to_numpy()
            timed = np.isfinite(measured)
            predicted = (seconds / alone[phase])[timed]
            cells = {"phase": phase, "label": f"{model} on {gpus}"}
            yield columns(predicted=predicted, measured=measured[timed], **cells)


def _colocated_s(
    gpu: Gpu, runtime: str, model: LanguageModel, rows: pl.DataFrame
) -> dict[str, Floats]:
    layout = Parallelism(tp=int(rows["n_gpus"][0]))
    across = runtime_across(load_runtime(runtime), layout.width)
    replica = Replica(model, gpu, cluster_for("auto", gpu), layout, runtime=across)
    batch, tokens = (rows[name].to_numpy().astype(np.float64) for name in ("batch", "seq_len"))
    steps = {"prefill": prefill_step(batch, tokens), "decode": decode_step(batch, tokens)}
    return {phase: np.asarray(iteration(replica, step).latency_s) for phase, step in steps.items()}


def caches(reference: Path) -> Iterator[Cells]:
    """Yield predicted over measured seconds of KV transfers, by what is left out of the fit.

    Mooncake's tables: one prefill and one decode replica of eight GPUs each, over RoCE.
    """
    rows = list(moved(reference))
    by_other = leave_one_out(rows, lambda row: row.framework, fit_transfers)
    splits = {
        "each cache by the others of its framework": transfers_left_out(rows),
        "each framework by the other": [(row, known) for some, known in by_other for row in some],
    }
    for split, pairs in splits.items():
        for row, known in pairs:
            ratio = exp(transfer_log_error(row, known))
            yield {"split": split, "predicted": ratio, "measured": 1.0}


def shares(reference: Path, point: Mapping[str, Any], long_prompt: int) -> Iterator[Cells]:
    """Yield the share of the TTFT of long prompts that the KV transfer takes.

    `point`: options of all deployments. `long_prompt`: least tokens of a long prompt.
    """

    def answer(pair: tuple[Record, Transfers]) -> Cells:
        row, known = pair
        options = {
            **{name: row[name] for name in ("model", "gpu", "tp", "prompt_tokens")},
            **{"pools.prefill_gpus": row.tp, "pools.decode_gpus": row.tp},
            "pools.kv_link_bytes_per_s": known.share * row.line_bytes_per_s,
            "scheduler": "sglang" if row.framework == "sglang" else "vllm_v1",
        }
        metrics = simulate(point_from(ServingPoint, {**point, **options}))
        label = f"{row.model}, {row.prompt_tokens:,}"
        measured = row.transfer_s / row.ttft_s
        return {"predicted": metrics.kv_transfer_share, "measured": measured, "label": label}

    pairs = transfers_left_out(list(moved(reference)))
    return predict([pair for pair in pairs if pair[0].prompt_tokens >= long_prompt], answer)


def pooled(reference: Path, most_clients: int, runs: int) -> Iterator[Cells]:
    """Yield mean TPOT and TTFT, with intervals, by whether decode workers draft tokens.

    `known_by`: the database that names the speculation, or the definition of the sweep alone.
    """

    def answer(run: PooledRun) -> list[Cells]:
        cache = RunCache()
        cache.rank_wait_s = rank_wait_without(run.framework)
        found = simulate(run.point, cache)
        cells = {
            "framework": run.framework,
            "gpu": run.point.gpu,
            "label": run.row,
            "drafts": "with drafts" if run.draft_tokens else "without drafts",
            "known_by": "database" if run.is_resolved else "sweep",
            "ranks": "one pool alone" if run.has_unlike_pools else "both pools or none",
        }
        pairs = {
            "TPOT": (found.tpot_mean_s, run.tpot_s),
            "TTFT": (found.ttft_mean_s, run.ttft_s),
        }
        ends = {
            "TPOT": (found.tpot_mean_s_lo, found.tpot_mean_s_hi),
            "TTFT": (found.ttft_mean_s_lo, found.ttft_mean_s_hi),
        }
        return [
            {**one, "lo": ends[one["metric"]][0], "hi": ends[one["metric"]][1]}
            for one in figures("metric", pairs, **cells)
        ]

    return predict(drawn_runs(reference, most_clients, runs), answer)


PREFILL_TOKENS = 16_384
"""Tokens of a rank in a published prefill step."""


def wide(_reference: Path, published: Sequence[Mapping[str, Any]]) -> Iterator[Cells]:
    """Yield tokens per second and GPU of one step of DeepSeek-V3 on many GPUs under SGLang."""
    for row in published:
        ranks, context = row["ranks"], float(row["context"])
        each = row.get("requests", PREFILL_TOKENS)
        decodes = "requests" in row
        options = {
            "attention_dp": ranks,
            "ep": ranks,
            "dtype": row.get("dtype", "fp8_block"),
            "kv_dtype": row.get("kv_dtype", "bf16"),
            "moe.backend": LOW_LATENCY if decodes else HIGH_THROUGHPUT,
            "moe.redundant_experts": row.get("redundant", 32),
            "moe.two_batch_overlap": row.get("overlap", True),
        }
        plain = {"model": "deepseek_v3", "gpu": row["gpu"], "tp": 1, "scheduler": "sglang"}
        point = point_from(ServingPoint, {**plain, "runtime": "sglang", **options})
        total = float(ranks * each)
        step = decode_step(total, context) if decodes else prefill_step(total / context, context)
        predicted = each / _pass_s(deployment_of(point).hardware.replica, step)
        label = f"{ranks} {row['gpu']}, {each:,} at {context:,.0f} tokens"
        yield {
            "pool": row["pool"],
            "label": label,
            "predicted": predicted,
            "measured": row["per_s"],
        }


def reused(reference: Path) -> Iterator[Cells]:
    """Yield the TTFT of 32 tokens behind a cached history: TinyChat on an RTX 4090."""
    runtime = load_runtime("eager")
    for case in tinychat_prompts(reference, reused=True):
        cells = {"predicted": case.predicted_s(runtime), "measured": case.measured_s}
        yield {**cells, "label": f"behind {case.group}"}


def products(
    reference: Path, clocks: Mapping[str, Sequence[int]], base_hz: float, matrix: Sequence[float]
) -> Iterator[pl.DataFrame]:
    """Yield speed-ups of a product by 4-bit weights on an A10, by clock.

    Marlin's benchmark, read off a figure to .05, with the clock free or locked at the base.
    `clocks`: by the name of a clock, the batch sizes that are not judged. `base_hz`: that clock.
    `matrix`: inner length and columns of the product.
    """
    for clock, skipped in clocks.items():
        rows = records(reference, "w4a16_products", clock=clock, kernel="marlin")
        speed_up = {row.batch: row.speedup_vs_fp16 for row in rows if row.batch not in skipped}
        batches, gpu = sorted(speed_up), load_gpu("a10")
        if clock == "base_locked":
            slower = base_hz / gpu.clock_hz
            peaks = {dtype: slower * peak for dtype, peak in gpu.peak_flops.items()}
            gpu = replace(gpu, clock_hz=base_hz, peak_flops=peaks)
        m, (k, n) = np.array(batches, np.float64), matrix
        half, quarter = (
            price(Gemm(name="product", m=m, n=n, k=k, weight_dtype=dtype), gpu)
            for dtype in ("", "int4")
        )
        predicted = half.latency_s / quarter.latency_s
        measured = np.array([speed_up[batch] for batch in batches])
        yield columns(predicted=predicted, measured=measured, clock=clock)


def decodes(reference: Path, context: float) -> Iterator[Cells]:
    """Yield seconds of decodes of ExLlamaV2 with 4-bit weights on an RTX 4090.

    Compiled code launches the layers, so the runtime `graphs` is nearest: with `eager`, the runtime
    of TinyChat's Python, the mean error is 34 % rather than 15 %. `context`: assumed tokens.
    """
    runtime = load_runtime("graphs")

    for row in records(reference, "exllama", gpu="RTX4090", bits_per_weight=4.0):
        model = model_of(f"{row.family} {row.size}")
        replica = replica_of(model, "rtx_4090", dtype="w4a16", kv_dtype="fp16", runtime=runtime)
        predicted_s = _pass_s(replica, decode_step(1.0, context))
        cells = {"label": model.name, "measured": 1.0 / row.tokens_per_s_bs1}
        yield {**cells, "predicted": predicted_s}


def prompts(
    reference: Path, gpu: str, model: str, tables: Mapping[str, str], all_logits: Sequence[str]
) -> Iterator[Cells]:
    """Yield the TTFT of prompts, by engine.

    `tables`: one in fp16, and one of several engines in 4 bits, without a column for the `model`.
    `all_logits`: engines that compute the logits of every token of a prompt.
    """
    fp16 = read_records(reference / tables["fp16"], gpu=gpu)
    rows = [("TinyChat in fp16", row.model, "fp16", row, row.fp16_ttft_s) for row in fp16]
    rows += [
        (f"{row.system} in 4 bits", model, "w4a16", row, row.w4_ttft_s)
        for row in read_records(reference / tables["w4a16"])
    ]
    for engine, name, dtype, row, measured_s in rows:
        options = {"dtype": dtype, "kv_dtype": "fp16", "runtime": load_runtime("eager")}
        replica = replica_of(model_name(name), gpu_name(gpu), **options)
        tokens = float(row.prompt_tokens)
        step = prefill_step(1.0, tokens)
        if engine in all_logits:
            step = replace(step, logits_rows=tokens)
        cells = {"engine": engine, "label": f"{name}, {tokens:,.0f} tokens"}
        yield {**cells, "predicted": _pass_s(replica, step), "measured": measured_s}


def max_throughputs(
    reference: Path,
    table: str,
    prompt: float,
    output: float,
    memory_share: float,
    systems: Mapping[str, str],
) -> Iterator[Cells]:
    """Yield output tokens per second of Llama-2-70B on an A100: the largest batch that fits.

    The batch is prefilled at once and decoded to its end (mit-han-lab/omniserve). `table` has 0
    where the model does not fit. `memory_share`: share that engines reserve.
    `systems`: dtype by the name of the system.
    """
    published = read_records(reference / table, model="Llama-2-70B", gpu="A100-80GB")
    measured = {row.system: float(row.max_tokens_s_0_is_oom) for row in published}
    for system, dtype in systems.items():
        predicted = _tokens_per_s(dtype, prompt, output, memory_share)
        yield {"label": system, "predicted": predicted, "measured": measured[system]}


def _tokens_per_s(dtype: str, prompt: float, output: float, memory_share: float) -> float:
    runtime = load_runtime("trtllm_session")
    options = {"dtype": dtype, "kv_dtype": "fp16", "framework": "trtllm", "runtime": runtime}
    replica = replica_of("llama2_70b", "a100_sxm", **options)
    free_bytes = memory_share * replica.gpu.hbm_bytes
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


CITED = "serving_modern/cited_single_numbers.parquet"

MAX_DRAFTS, CHAIN_STEPS = 64, 4096
"""States and steps of the Markov chain."""

CONTEXT = 500.0
"""Approximate tokens of context; a pass of one sequence reads 26 times as many bytes of weights."""

RUNTIME = replace(load_runtime("eager"), prompt_layer_s={})
"""TinyChat's host, for the RTX 3090. HF launches the same kernels for any number of tokens."""

HOST_LAYERS = 3.0
"""Layers whose launch takes as long as the host's further work in each pass."""

PUBLISHED_RATE, PUBLISHED_LAYERS = 40.24, 32
"""Tokens per second of Vicuna-7B without drafts on the A100's machine, and its layers
(hemingkx/Spec-Bench, issue 4): 2.5 times as long as the GPU takes."""

LAYER_S = 1.0 / PUBLISHED_RATE / (PUBLISHED_LAYERS + HOST_LAYERS)
HOSTS = {
    "a100_sxm": replace(RUNTIME, launch_layer_s={"any": LAYER_S}, host_s=HOST_LAYERS * LAYER_S)
}

MEDUSA_HEADS = 4


def spec_bench(reference: Path, trees: Mapping[str, Mapping[str, float]]) -> Iterator[Cells]:
    """Yield predicted and measured speed-ups by method.

    `trees`: by method, rows that a pass verifies (`checked`), passes of the drafter (`drafts`) and
    rows of each of those (`drafted`). The method "SpS" has a draft model instead.
    """
    for row in records(reference, "spec_bench", method=("SpS", *trees)):
        model, gpu = row.model, row.gpu
        tree = _assisted(row.tokens) if row.method == "SpS" else trees[row.method]
        plain_s = _hf_pass_s(model, gpu, decode_step(1.0, CONTEXT))
        verify_s = _hf_pass_s(model, gpu, chunk_step(tree["checked"], CONTEXT, tree["checked"]))
        accept_s = HOSTS.get(gpu, RUNTIME).host_s
        predicted = row.tokens * plain_s / (verify_s + accept_s + _drafting_s(row, tree))
        cells = {"method": row.method, "label": f"{model.name} on {gpu}"}
        yield {**cells, "predicted": predicted, "measured": row.speed_up}


def _drafting_s(row: Record, tree: Mapping[str, float]) -> float:
    drafts = tree.get("drafts", 0.0)
    if row.method == "SpS":
        drafter = extra_model("vicuna_68m.toml")
        return drafts * _hf_pass_s(drafter, row.gpu, decode_step(1.0, CONTEXT))
    if row.method == "Medusa":  # heads of a square layer and an output each, on all rows
        hidden, gpu = float(row.model.hidden), load_gpu(row.gpu)
        outputs = (hidden, float(row.model.vocab))
        products = [Gemm(name="head", m=tree["checked"], n=n, k=hidden) for n in outputs]
        head_s = sum(float(price(one, gpu).latency_s) for one in products)
        return HOSTS.get(row.gpu, RUNTIME).host_s + MEDUSA_HEADS * head_s
    if not drafts:
        return 0.0
    step = chunk_step(tree["drafted"], CONTEXT, tree["drafted"])
    return drafts * _hf_pass_s(dense_layer(row.model), row.gpu, step)


def _assisted(tokens: float) -> Mapping[str, float]:
    """Return verified rows and drafts of HF's assisted generation, from tokens per iteration.

    The schedule "heuristic" drafts two tokens more after all were accepted and one less, at least
    one, after any was rejected: a Markov chain over numbers of drafts. The acceptance rate is the
    one whose steady state gives those tokens.

    >>> round(_assisted(2.0)["drafts"], 2)
    2.71
    """
    rate = bisect(lambda rate: _steady_state(rate)[0] - tokens, 0.0, 0.99)
    drafts = _steady_state(rate)[1]
    return {"checked": drafts + 1.0, "drafts": drafts}


@functools.cache
def _steady_state(rate: float) -> tuple[float, float]:
    drafts = np.arange(1, MAX_DRAFTS + 1)
    all_accepted = rate**drafts
    move = np.zeros((drafts.size, drafts.size))
    rows = np.arange(drafts.size)
    move[rows, np.minimum(rows + 2, rows[-1])] += all_accepted
    move[rows, np.maximum(rows - 1, 0)] += 1.0 - all_accepted
    share = np.linalg.matrix_power(move, CHAIN_STEPS)[0]
    tokens = (1.0 - rate ** (drafts + 1)) / (1.0 - rate)
    return float(share @ tokens), float(share @ drafts)


def _hf_pass_s(model: LanguageModel, gpu: str, step: Step) -> float:
    options = {"dtype": "fp16", "kv_dtype": "fp16", "runtime": HOSTS.get(gpu, RUNTIME)}
    return _pass_s(replica_of(model, gpu, **options), step)


def cited(reference: Path, figures: Sequence[Mapping[str, Any]]) -> Iterator[Cells]:
    """Yield figures cited from documentation: a metric of a point, or its ratio to a plain point.

    `figures`: the name of the line, the cited setting, the metric, the point, and optionally the
    plain point to divide by and `is_speed_up` (the citation is a speed-up of times).
    """
    cited_rows = {row.setting: row for row in read_records(reference / CITED)}
    for figure in figures:
        row, metric = cited_rows[figure["setting"]], figure["metric"]
        predicted, *plain = (
            getattr(simulate(point_from(ServingPoint, figure[key])), metric)
            for key in ("point", "plain")
            if key in figure
        )
        measured = row.treated
        if plain:
            predicted /= plain[0]
        elif metric.endswith("_s"):  # seconds per token, cited as a rate
            predicted = 1.0 / predicted
        if figure.get("is_speed_up", False):
            predicted, measured = 1.0 / predicted, row.baseline / row.treated
        cells = {"line": figure["line"], "label": f"{predicted:.3g} of {measured:.3g}"}
        yield {**cells, "predicted": predicted, "measured": measured}


def by_batch(
    _reference: Path,
    point: Mapping[str, Any],
    context: float,
    published: Mapping[str, Mapping[str, float]],
) -> Iterator[Cells]:
    """Yield predicted and `published` speed-ups of decodes, by number of drafts and batch size.

    `point`: the deployment. `context`: tokens of context per sequence.
    """
    decoder = point_from(ServingPoint, point)
    plain = updated(decoder, {"speculation.num_draft_tokens": 0})
    method, rates = decoder.speculation.method, decoder.speculation.acceptance
    for drafts, by_size in published.items():
        drafted = updated(decoder, {"speculation.num_draft_tokens": int(drafts)})
        tokens = mean_acceptance_length(survival(method, rates, int(drafts)))
        for batch, measured in by_size.items():
            plain_s, iteration_s = (_decode_s(one, int(batch), context) for one in (plain, drafted))
            cells = {"label": f"{drafts} drafts, batch {batch}", "measured": measured}
            yield {**cells, "predicted": tokens * plain_s / iteration_s}


def _decode_s(point: ServingPoint, batch: int, context: float) -> float:
    hardware = deployment_of(point).hardware
    drafter = drafter_of(point, hardware)
    table, batch_price = prices_of(point, hardware, drafter)
    return drafted_s(table, batch_price, float(batch), drafter.drafted if drafter else 0, context)
