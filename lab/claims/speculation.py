"""Claims about speculative decoding: Spec-Bench, cited speed-ups, and speed-ups by batch size.

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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import predict
from lab.tables.records import extra_model, records, replica_of
from lab.tables.rows import Record, read_records
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel
from simulators.composition.price import iteration
from simulators.composition.replica import load_runtime
from simulators.core.fields import point_from, updated
from simulators.kernels.price import price
from simulators.serving.deployment import deployment_of
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import drafted_s, prices_of
from simulators.serving.simulator import simulate
from simulators.serving.speculation import dense_layer, drafter_of, mean_acceptance_length, survival
from simulators.workload.llm.step import Step, chunk_step, decode_step
from simulators.workload.operators import Gemm

CITED = "serving_modern/cited_single_numbers.parquet"

BISECTIONS, MAX_DRAFTS, CHAIN_STEPS = 40, 64, 4096
"""Steps of the search for an acceptance rate; states and steps of the Markov chain."""

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


def spec_bench(reference: Path, trees: Mapping[str, Mapping[str, float]]) -> pl.DataFrame:
    """Return predicted and measured speed-ups by method.

    `trees`: by method, rows that a pass verifies (`checked`), passes of the drafter (`drafts`) and
    rows of each of those (`drafted`). The method "SpS" has a draft model instead.
    """

    def answer(row: Record) -> dict[str, Any]:
        model, gpu = row.model, row.gpu
        tree = _assisted(row.tokens) if row.method == "SpS" else trees[row.method]
        plain_s = _pass_s(model, gpu, decode_step(1.0, CONTEXT))
        verify_s = _pass_s(model, gpu, chunk_step(tree["checked"], CONTEXT, tree["checked"]))
        accept_s = HOSTS.get(gpu, RUNTIME).host_s
        return {
            "predicted": row.tokens * plain_s / (verify_s + accept_s + _drafting_s(row, tree)),
            "method": row.method,
            "measured": row.speed_up,
            "label": f"{model.name} on {gpu}",
        }

    return predict(records(reference, "spec_bench", method=("SpS", *trees)), answer)


def _drafting_s(row: Record, tree: Mapping[str, float]) -> float:
    """Return the seconds of drafting per pass of the model."""
    drafts = tree.get("drafts", 0.0)
    if row.method == "SpS":
        drafter = extra_model("vicuna_68m.toml")
        return drafts * _pass_s(drafter, row.gpu, decode_step(1.0, CONTEXT))
    if row.method == "Medusa":  # heads of a square layer and an output each, on all rows
        hidden, gpu = float(row.model.hidden), load_gpu(row.gpu)
        outputs = (hidden, float(row.model.vocab))
        products = [Gemm(name="head", m=tree["checked"], n=n, k=hidden) for n in outputs]
        head_s = sum(float(price(one, gpu).latency_s) for one in products)
        return HOSTS.get(row.gpu, RUNTIME).host_s + MEDUSA_HEADS * head_s
    if not drafts:
        return 0.0
    step = chunk_step(tree["drafted"], CONTEXT, tree["drafted"])
    return drafts * _pass_s(dense_layer(row.model), row.gpu, step)


def _assisted(tokens: float) -> Mapping[str, float]:
    """Return verified rows and drafts of HF's assisted generation, from tokens per iteration.

    The schedule "heuristic" drafts two tokens more after all were accepted and one less, at least
    one, after any was rejected: a Markov chain over numbers of drafts. The acceptance rate is the
    one whose steady state gives those tokens.

    >>> round(_assisted(2.0)["drafts"], 2)
    2.71
    """
    low, high = 0.0, 0.99
    for _ in range(BISECTIONS):
        rate = (low + high) / 2.0
        mean_tokens, drafts = _steady_state(rate)
        low, high = (rate, high) if mean_tokens < tokens else (low, rate)
    return {"checked": drafts + 1.0, "drafts": drafts}


@functools.cache
def _steady_state(rate: float) -> tuple[float, float]:
    """Return mean tokens and mean drafts per iteration at an acceptance rate per draft."""
    drafts = np.arange(1, MAX_DRAFTS + 1)
    all_accepted = rate**drafts
    move = np.zeros((drafts.size, drafts.size))
    rows = np.arange(drafts.size)
    move[rows, np.minimum(rows + 2, rows[-1])] += all_accepted
    move[rows, np.maximum(rows - 1, 0)] += 1.0 - all_accepted
    share = np.linalg.matrix_power(move, CHAIN_STEPS)[0]
    tokens = (1.0 - rate ** (drafts + 1)) / (1.0 - rate)
    return float(share @ tokens), float(share @ drafts)


def _pass_s(model: LanguageModel, gpu: str, step: Step) -> float:
    options = {"dtype": "fp16", "kv_dtype": "fp16", "runtime": HOSTS.get(gpu, RUNTIME)}
    return float(iteration(replica_of(model, gpu, **options), step).latency_s)


def cited(reference: Path, figures: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return figures cited from documentation: a metric of a point, or its ratio to a plain point.

    `figures`: the name of the line, the cited setting, the metric, the point, and optionally the
    plain point to divide by and `is_speed_up` (the citation is a speed-up of times).
    """
    cited_rows = {row.setting: row for row in read_records(reference / CITED)}
    rows = []
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
        rows.append({**cells, "predicted": predicted, "measured": measured})
    return pl.DataFrame(rows)


def by_batch(
    _reference: Path,
    point: Mapping[str, Any],
    context: float,
    published: Mapping[str, Mapping[str, float]],
) -> pl.DataFrame:
    """Return speed-ups of decodes alone, by number of drafts and batch size.

    Args:
        _reference: not read.
        point: the deployment.
        context: tokens of context per sequence.
        published: speed-up by number of drafts and batch size.
    """
    decoder = point_from(ServingPoint, point)
    plain = updated(decoder, {"speculation.num_draft_tokens": 0})
    method, rates = decoder.speculation.method, decoder.speculation.acceptance
    rows = []
    for drafts, by_size in published.items():
        drafted = updated(decoder, {"speculation.num_draft_tokens": int(drafts)})
        tokens = mean_acceptance_length(survival(method, rates, int(drafts)))
        for batch, measured in by_size.items():
            plain_s, iteration_s = (_decode_s(one, int(batch), context) for one in (plain, drafted))
            cells = {"label": f"{drafts} drafts, batch {batch}", "measured": measured}
            rows.append({**cells, "predicted": tokens * plain_s / iteration_s})
    return pl.DataFrame(rows)


def _decode_s(point: ServingPoint, batch: int, context: float) -> float:
    """Return the seconds of an iteration of decodes, with their drafts if there are any."""
    hardware = deployment_of(point).hardware
    drafter = drafter_of(point, hardware)
    table, batch_price = prices_of(point, hardware, drafter)
    return drafted_s(table, batch_price, float(batch), drafter.drafted if drafter else 0, context)
