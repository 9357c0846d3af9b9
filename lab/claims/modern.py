"""Many adapters at once: throughput that S-LoRA loses by the first of them, and by two hundred.

Ours are rates of a closed loop with more clients than fit into memory. Theirs are at one arrival
rate, at which the engine without adapters is not quite full: its own loss is at least this. The
engine is slower, so rates are compared with each engine's own without adapters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from lab.claims.predictions import columns, predict, together
from lab.fits.links import (
    fit_transfers,
    frameworks,
    of_framework,
    transfer_log_error,
    transfers_left_out,
)
from lab.tables.collectives import moved
from lab.tables.passes import (
    COLOCATION_GPU,
    MATRIX,
    SPLITWISE,
    exllama_decodes,
    gpu_at,
    slowdowns,
    speed_ups,
    tinychat_prompts,
)
from lab.tables.records import extra_model, gpu_name, model_name, model_of, records, replica_of
from lab.tables.rows import Floats, Record, read_records
from lab.tables.speculation import SETTINGS, throughputs
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import Gpu, load_gpu, what_if
from simulators.catalog.model import LanguageModel
from simulators.composition.metrics import prompt_s
from simulators.composition.price import iteration
from simulators.composition.replica import Replica, load_runtime, runtime_across
from simulators.core.fields import point_from
from simulators.kernels.price import price
from simulators.serving.demand.requests import Requests
from simulators.serving.deployment import deployment_of
from simulators.serving.engine.kv_transfer import Transfers
from simulators.serving.point import (
    BY_TOKEN,
    CLOSED,
    RDMA,
    ArrivalsConfig,
    CacheConfig,
    LengthsConfig,
    LoraConfig,
    MeasurementConfig,
    PoolsConfig,
    SchedulingConfig,
    ServingPoint,
)
from simulators.serving.prices.batch_price import drafted_s, prices_of
from simulators.serving.run import run_of
from simulators.serving.simulator import simulate
from simulators.serving.speculation import dense_layer, drafter_of, mean_acceptance_length, survival
from simulators.workload.llm.memory import kv_bytes_per_token, weight_bytes
from simulators.workload.llm.parallelism import Parallelism
from simulators.workload.llm.step import Step, chunk_step, decode_step, prefill_step
from simulators.workload.operators import Gemm

ADAPTER_GPU = "a100-80"
S_LORA = ServingPoint(
    model="",
    gpu="a100_sxm",
    scheduler="lightllm",
    runtime="eager",
    cache=CacheConfig(block_size=1),
    max_batch=1000,
    scheduling=SchedulingConfig(max_batch_tokens=16_384),
    prompt_tokens=512,
    output_tokens=512,
    lengths=LengthsConfig(spread=504 / 512),
    arrivals=ArrivalsConfig(process=CLOSED, clients=600),
    requests=2000,
    lora=LoraConfig(targets="attention", kernels=BY_TOKEN),
)
"""S-LoRA is built on LightLLM, adapts projections around attention, and its decodes gather."""


def losses(reference: Path) -> pl.DataFrame:
    """Return by setting the percent lost by the first adapter, and by all others."""
    rows = []
    for name, setting in SETTINGS.items():
        theirs = throughputs(reference, ADAPTER_GPU, name)
        rank = round(float(np.mean(setting.ranks)))
        points = {
            count: replace(
                S_LORA,
                model=setting.model,
                lora=replace(S_LORA.lora, adapters=count, rank=rank),
            )
            for count in theirs
        }
        ours = {count: simulate(point).requests_per_s for count, point in points.items()}
        most = max(theirs)
        for change, first, last in (
            ("loss by the first adapter", 0, 1),
            (f"loss from 1 to {most} adapters", 1, most),
        ):
            lost = (100.0 * (rate[last] / rate[first] - 1.0) for rate in (ours, theirs))
            predicted, measured = lost
            cells = {"setting": name, "model": setting.model, "change": change}
            rows.append({**cells, "predicted": predicted, "measured": measured})
    return pl.DataFrame(rows)


COLOCATION_RUNTIME = "eager"
"""MuxServe runs a vLLM of 2023, which launched kernel by kernel."""


def passes(reference: Path) -> pl.DataFrame:
    """Return predicted and measured slowdowns of prefill and decode passes."""
    frames = []
    for row in slowdowns(reference):
        for phase, ours in predicted(row).items():
            theirs = getattr(row, phase)
            timed = np.isfinite(theirs)
            label = f"{row.model} on {row.gpus}"
            frames.append(
                columns(predicted=ours[timed], measured=theirs[timed], phase=phase, label=label)
            )
    return together(frames)


def predicted(rows: Record) -> dict[str, Floats]:
    """Return how much longer each pass takes on its share of the SMs than on all of them."""
    whole = _passes_s(rows, 1.0)
    found = {phase: np.empty(rows.share.size) for phase in whole}
    for share in np.unique(rows.share):
        mine = rows.share == share
        for phase, seconds in _passes_s(rows, float(share)).items():
            found[phase][mine] = seconds[mine] / whole[phase][mine]
    return found


def _passes_s(rows: Record, share: float) -> dict[str, Floats]:
    """Return the seconds of all rows' passes on one share of the SMs."""
    sheet = load_gpu(COLOCATION_GPU)
    cut = Parallelism(tp=rows.gpus)
    replica = Replica(
        model_of(rows.model),
        what_if(sheet, sm_scale=share),
        cluster_for("auto", sheet),
        cut,
        runtime=runtime_across(load_runtime(COLOCATION_RUNTIME), cut.width),
    )
    steps = {
        "prefill": prefill_step(rows.batch, rows.tokens),
        "decode": decode_step(rows.batch, rows.tokens),
    }
    return {phase: np.asarray(iteration(replica, step).latency_s) for phase, step in steps.items()}


LONG = 4096
"""Tokens: of shorter prompts the server before the engine takes most of TTFT."""


def caches(reference: Path) -> pl.DataFrame:
    """Return predicted over measured seconds, each transfer and each framework left out."""
    rows = list(moved(reference))
    names = frameworks(rows)
    others = {name: fit_transfers([row for row in rows if row.framework != name]) for name in names}
    splits = {
        "each cache by the others of its framework": list(transfers_left_out(rows)),
        "each framework by the other": [
            (row, others[name]) for name in names for row in of_framework(rows, name)
        ],
    }
    cells = [
        {"split": split, "predicted": exp(transfer_log_error(row, known)), "measured": 1.0}
        for split, pairs in splits.items()
        for row, known in pairs
    ]
    return pl.DataFrame(cells)


def shares(reference: Path) -> pl.DataFrame:
    """Return shares of TTFT of long prompts that are KV transfer."""
    long = [
        (row, known)
        for row, known in transfers_left_out(list(moved(reference)))
        if row.prompt_tokens >= LONG
    ]
    return predict(
        long,
        lambda pair: {
            "predicted": share_of_ttft(*pair),
            "measured": pair[0].transfer_s / pair[0].ttft_s,
        },
        lambda pair: {"label": f"{pair[0].model}, {pair[0].prompt_tokens:,}"},
    )


def reused(reference: Path) -> pl.DataFrame:
    """Return seconds to the first token of 32 tokens behind a history in the cache."""
    runtime = load_runtime("eager")
    return predict(
        tinychat_prompts(reference, reused=True),
        lambda case: {"predicted": case.predicted_s(runtime), "measured": case.measured_s},
        lambda case: {"label": f"behind {case.group}"},
    )


def share_of_ttft(row: Record, known: Transfers) -> float:
    """Return the transfer's share of the time to the first token of one prompt alone.

    Raises:
        Infeasible: the model does not fit.
    """
    point = ServingPoint(
        row.model,
        row.gpu,
        tp=row.tp,
        pools=PoolsConfig(
            prefill_gpus=row.tp,
            decode_gpus=row.tp,
            kv_link=RDMA,
            kv_link_bytes_per_s=known.share * row.line_bytes_per_s,
        ),
        dtype="bf16",
        kv_dtype="bf16",
        scheduler="sglang" if row.framework == "sglang" else "vllm_v1",
        chunk_size=8192,
        prompt_tokens=row.prompt_tokens,
        output_tokens=2,
        requests=1,
        measurement=MeasurementConfig(warmup=0),
    )
    found = simulate(replace(point, measurement=replace(point.measurement, window="whole")))
    assert found.kv_transfer_share is not None
    return found.kv_transfer_share


MODEL = "llama2_70b"
REPLICAS = (8, 4)
"""GPUs of a replica."""


class TimedSetting(NamedTuple):
    """One setting: prompt and output tokens, and medians of repeated runs."""

    gpu: str
    tp: int
    prompt: int
    batch: int
    output: int
    ttft_s: float
    tpot_s: float


def pools(reference: Path) -> pl.DataFrame:
    """Return seconds of prompts and of tokens, by the GPUs of a replica."""
    rows = []
    for tp in REPLICAS:
        for row in timed(reference, tp):
            first_s, later_s = _seconds(row)
            cells = {"tp": tp, "is_single": row.batch == 1}
            rows += [
                {**cells, "metric": "prompts read", "predicted": first_s, "measured": row.ttft_s},
                {**cells, "metric": "tokens decoded", "predicted": later_s, "measured": row.tpot_s},
            ]
    return pl.DataFrame(rows)


def timed(reference: Path, tp: int) -> list[TimedSetting]:
    """Return the settings of one cut; rows marked as synthetic were derived, not measured."""
    found: dict[tuple[str, int, int, int], list[tuple[float, float]]] = {}
    rows = read_records(
        reference / SPLITWISE, model="llama2-70b", tensor_parallel=tp, synthetic_pcap=False
    )
    for row in rows:
        key = gpu_name(row["hardware"]), row["prompt_size"], row["batch_size"], row["token_size"]
        found.setdefault(key, []).append((row["prompt_time"] * 1e-3, row["token_time"] * 1e-3))
    return [
        TimedSetting(gpu, tp, prompt, batch, output, *np.median(times, axis=0).tolist())
        for (gpu, prompt, batch, output), times in sorted(found.items())
    ]


def _seconds(row: TimedSetting) -> tuple[float, float]:
    """Return when the last prompt of a batch has been read, and the mean time of later tokens."""
    point = ServingPoint(
        MODEL,
        row.gpu,
        tp=row.tp,
        pools=PoolsConfig(prefill_gpus=row.tp, decode_gpus=row.tp, kv_link="infinite"),
        scheduler="vllm",
        scheduling=SchedulingConfig(max_batch_tokens=row.prompt),
        runtime="eager",
        cache=CacheConfig(watermark=0.0),
        max_context=row.prompt + row.output,
    )
    host = prompt_s(deployment_of(point).hardware.replica, prefill_step(1.0, float(row.prompt)))
    lengths = np.full(row.batch, row.prompt), np.full(row.batch, row.output)
    asked = Requests(np.zeros(row.batch), *lengths, np.zeros((row.batch, 2)))
    found = run_of(point, asked).metrics()
    assert found.ttft_max_s is not None
    assert found.tpot_mean_s is not None
    return found.ttft_max_s + float(host), found.tpot_mean_s


HALVINGS, MOST_ASSISTED, SETTLED_STEPS = 40, 64, 4096
"""Of the search for a rate; drafts of a walk; its iterations until it is settled."""

CONTEXT = 500.0
"""Tokens so far, about; a pass of one sequence reads 26 times as many bytes of weights."""

RUNTIME = replace(load_runtime("eager"), prompt_layer_s={})
"""HF's code launches the same for several tokens as for one; TinyChat's does not."""

HOST_LAYERS = 3.0
"""Layers that are launched in the time that the host takes besides, in each pass."""

PUBLISHED_RATE, PUBLISHED_LAYERS = 40.24, 32
"""Tokens a second of Vicuna-7B without drafts on the A100's machine, and its layers
(hemingkx/Spec-Bench, issue 4): 2.5 times as long as the GPU takes."""

LAYER_S = 1.0 / PUBLISHED_RATE / (PUBLISHED_LAYERS + HOST_LAYERS)

HOSTS = {
    "a100_sxm": replace(RUNTIME, launch_layer_s={"any": LAYER_S}, host_s=HOST_LAYERS * LAYER_S)
}

MEDUSA_HEADS = 4


@dataclass(frozen=True)
class VerifyStep:
    """What a method runs for each pass of the model."""

    checked: float  # rows of that pass
    drafts: float = 0.0  # passes of what drafts
    drafted: float = 1.0  # rows of each


TREES = {
    "EAGLE": VerifyStep(checked=26.0, drafts=5.0, drafted=4.0),
    "EAGLE2": VerifyStep(checked=60.0, drafts=6.0, drafted=10.0),
    "Medusa": VerifyStep(checked=64.0),
    "PLD": VerifyStep(checked=11.0),
}
"""EAGLE: the 25 nodes of `mc_sim_7b_63` in 5 levels, of which a middle one drafts from 4. EAGLE-2:
59 nodes, the 10 best of each of 5 levels behind the first. Medusa: the 63 nodes of its
`mc_sim_7b_63`. Prompt look-up: 10 candidates."""

METHODS = ("SpS", *TREES)


def spec_bench(reference: Path) -> pl.DataFrame:
    """Return predicted and measured speed-ups by method."""

    def answer(row: Record) -> dict[str, Any]:
        label = f"{row.model.name} on {row.gpu}"
        cells = {"method": row.method, "measured": row.speed_up, "label": label}
        return {"predicted": speed_up(row), **cells}

    return predict(records(reference, "spec_bench", method=METHODS), answer)


def speed_up(row: Record) -> float:
    """Return how much faster a sequence is decoded than by plain passes."""
    runs = assisted(row.tokens) if row.method == "SpS" else TREES[row.method]
    plain_s = pass_s(row.model, row.gpu, decode_step(1.0, CONTEXT))
    checked_s = pass_s(row.model, row.gpu, chunk_step(runs.checked, CONTEXT, runs.checked))
    accepted_s = HOSTS.get(row.gpu, RUNTIME).host_s
    return float(row.tokens * plain_s / (checked_s + accepted_s + drafting_s(row, runs)))


def drafting_s(row: Record, runs: VerifyStep) -> float:
    """Return the seconds of what drafts, for one pass of the model."""
    if row.method == "SpS":
        return runs.drafts * pass_s(
            extra_model("vicuna_68m.toml"), row.gpu, decode_step(1.0, CONTEXT)
        )
    if row.method == "Medusa":
        return HOSTS.get(row.gpu, RUNTIME).host_s + medusa_s(row.model, row.gpu, runs.checked)
    head, step = dense_layer(row.model), chunk_step(runs.drafted, CONTEXT, runs.drafted)
    return runs.drafts * pass_s(head, row.gpu, step) if runs.drafts else 0.0


def assisted(tokens: float) -> VerifyStep:
    """Return what assisted generation of HF transformers comes to, from its tokens an iteration.

    It drafts two tokens more after all were accepted and one less, at least one, after any was not
    (`num_assistant_tokens_schedule` "heuristic"): a walk over numbers of drafts, whose steady state
    has one rate of acceptance that brings those tokens.

    >>> assisted(2.0).drafts.__round__(2)
    2.71
    """
    low, high = 0.0, 0.99
    for _ in range(HALVINGS):
        rate = (low + high) / 2.0
        brought, drafts = _walk(rate)
        low, high = (rate, high) if brought < tokens else (low, rate)
    return VerifyStep(checked=drafts + 1.0, drafts=drafts)


@functools.cache
def _walk(rate: float) -> tuple[float, float]:
    """Return mean tokens of an iteration and mean drafts where each is accepted at a rate."""
    drafts = np.arange(1, MOST_ASSISTED + 1)
    all_of_them = rate**drafts
    move = np.zeros((drafts.size, drafts.size))
    rows = np.arange(drafts.size)
    move[rows, np.minimum(rows + 2, rows[-1])] += all_of_them
    move[rows, np.maximum(rows - 1, 0)] += 1.0 - all_of_them
    share = np.linalg.matrix_power(move, SETTLED_STEPS)[0]
    tokens = (1.0 - rate ** (drafts + 1)) / (1.0 - rate)
    return float(share @ tokens), float(share @ drafts)


def medusa_s(model: LanguageModel, gpu: str, rows: float) -> float:
    """Return the seconds of Medusa's heads: a square layer and an output each, on all rows."""
    chip = load_gpu(gpu)
    outputs = (float(model.hidden), float(model.vocab))
    products = [Gemm(name="head", m=rows, n=n, k=float(model.hidden)) for n in outputs]
    return MEDUSA_HEADS * sum(float(price(one, chip).latency_s) for one in products)


def pass_s(model: LanguageModel, gpu: str, step: Step) -> float:
    """Return the seconds of one pass."""
    host = HOSTS.get(gpu, RUNTIME)
    replica = replica_of(model, gpu, dtype="fp16", kv_dtype="fp16", runtime=host)
    return float(iteration(replica, step).latency_s)


CITED = "serving_modern/cited_single_numbers.parquet"


def cited(reference: Path, figures: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return figures of documentation: of a point, or its ratio to a plain one.

    Args:
        reference: the folder of reference tables.
        figures: each with the name of its line, the cited setting, the metric, the point, perhaps
            the point it is divided by, and whether a speed-up of times is cited.
    """
    cited_rows = {row["setting"]: row for row in read_records(reference / CITED)}
    rows = []
    for figure in figures:
        row = cited_rows[figure["setting"]]
        metric, measured = figure["metric"], row["treated"]
        predicted = getattr(simulate(point_from(ServingPoint, figure["point"])), metric)
        if "plain" in figure:
            predicted /= getattr(simulate(point_from(ServingPoint, figure["plain"])), metric)
        if metric.endswith("_s") and "plain" not in figure:  # seconds per token, cited as a rate
            predicted = 1.0 / predicted
        if figure.get("is_speed_up", False):
            predicted, measured = 1.0 / predicted, row["baseline"] / row["treated"]
        label = f"{predicted:.3g} of {measured:.3g}"
        cells = {"line": figure["line"], "label": label, "measured": measured}
        rows.append({**cells, "predicted": predicted})
    return pl.DataFrame(rows)


def by_batch(
    _reference: Path,
    point: Mapping[str, Any],
    context: float,
    published: Mapping[str, Mapping[str, float]],
) -> pl.DataFrame:
    """Return speed-ups by number of drafts and batch.

    Args:
        _reference: the folder of reference tables, which is not read.
        point: what decodes.
        context: tokens of each sequence so far.
        published: speed-up by drafts and batch.
    """
    decoder = point_from(ServingPoint, point)
    rows = []
    for drafts, by_size in published.items():
        drafted = replace(
            decoder, speculation=replace(decoder.speculation, num_draft_tokens=int(drafts))
        )
        shares = survival(decoder.speculation.method, decoder.speculation.acceptance, int(drafts))
        tokens = mean_acceptance_length(shares)
        for batch, measured in by_size.items():
            plain_s = _decode_s(
                replace(decoder, speculation=replace(decoder.speculation, num_draft_tokens=0)),
                int(batch),
                context,
            )
            predicted = tokens * plain_s / _decode_s(drafted, int(batch), context)
            label = f"{drafts} drafts, batch {batch}"
            rows.append({"label": label, "predicted": predicted, "measured": measured})
    return pl.DataFrame(rows)


def _decode_s(point: ServingPoint, batch: int, context: float) -> float:
    """Return the seconds of an iteration of decodes, with their drafts if there are any."""
    hardware = deployment_of(point).hardware
    drafter = drafter_of(point, hardware)
    table, price = prices_of(point, hardware, drafter)
    return drafted_s(table, price, float(batch), drafter.drafted if drafter else 0, context)


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


def max_throughputs(
    reference: Path, table: str, prompt: float, output: float, systems: Mapping[str, str]
) -> pl.DataFrame:
    """Return tokens per second of the largest batch that fits, of systems in which one fits.

    Args:
        reference: the folder of reference tables.
        table: of published max_throughputs; 0 where the model does not fit.
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
