"""Build the space of training designs for the flags of `ask training`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from simulators.catalog.cluster import AUTO
from simulators.catalog.model import load_model
from simulators.catalog.price import DEFAULT as PUBLIC_CLOUD
from simulators.core.errors import UserError
from simulators.training.memory import rank_memory
from simulators.training.metrics import job_of, plans_of
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.simulator import SIMULATOR
from sweeper.questions import Deadline, Question, flag
from sweeper.text import number_in

COST = "run_cost_usd"
DAY_S = 86_400.0
TONNE_G, KG_G = 1e6, 1e3
LEAST, MOST_CHANGES = 0.01, 6
"""Smallest share or gain printed, and most gains printed."""

NEXT_GPUS = ("h200_sxm", "b200_sxm", "gb300")
"""GPUs tried as alternatives."""

PARTS = {
    "compute": "kernels",
    "bubble": "pipeline bubble",
    "tp_comm": "tensor-parallel communication",
    "cp_comm": "context-parallel communication",
    "ep_comm": "expert-parallel communication",
    "dp_comm": "data-parallel communication",
    "straggler": "straggler wait",
    "optimizer": "optimiser",
    "loading": "storage",
}
HELD = {
    "activation": "activations",
    "weight": "weights",
    "gradient": "gradients",
    "optimizer_state": "optimizer states",
    "workspace": "logits and workspace",
}
"""Printed names of the parts of a step and of a rank's memory."""


@dataclass(frozen=True)
class TrainingFlags:
    """Flags of `ask training`: model, GPUs, training tokens and time limit."""

    model: str = flag("a model of the catalog, or a config.json")
    gpu: str = flag("GPUs to choose from, as in h100_sxm,b200_sxm")
    gpus: int = flag("number of GPUs (default 1024)", least=1, default=1024)
    tokens: str = flag("training tokens of the run, as in 2T (default 1T)", default="1T")
    batch_tokens: str = flag("tokens per step, as in 4M (default 4M)", default="4M")
    sequence: int = flag("tokens per sequence (default 8192)", least=1, default=8192)
    dtype: str = flag("precisions to choose from (default bf16)", default="bf16")
    loss: float = flag("target loss of a scaling law, instead of --tokens", default=0.0)
    days: float = flag("time limit of the run in days (default 365)", default=365.0)


Evaluate = Callable[[pa.RecordBatch], pa.RecordBatch]


def question_of(flags: TrainingFlags, evaluate: Evaluate) -> Question:
    """Return the question for parsed flags.

    `evaluate` is the simulator's function, used to evaluate changes of the best design.

    Raises:
        UserError: a number of tokens or days is not positive.
    """
    if not flags.days > 0:
        raise UserError(f"--days {flags.days:g}: write a number above zero")
    space = _space(flags)
    mark = hashlib.blake2b(json.dumps(space).encode(), digest_size=3).hexdigest()
    return Question(
        name=f"train_{Path(flags.model).stem}_{mark}",
        asks=f"How is {flags.model} best trained on {flags.gpus} GPUs?",
        space=space,
        given=("model",),
        amounts=lambda row, _: {} if row[COST] is None else {"for the run": row[COST]},
        prices=(PUBLIC_CLOUD,),
        without_price="run_s",
        deadlines=(Deadline(metric="run_s", limit=flags.days * DAY_S, interval="step_s"),),
        shown=(
            "step_s",
            "mfu",
            "tokens_per_s_per_gpu",
            "bubble_share",
            "memory_bytes",
            "goodput_share",
            "loss",
            "run_s",
            "run_energy_j",
        ),
        asked=lambda row: remarks_on(row, evaluate),
        details=("dtype", "micro_batch", "recompute", "zero"),
        alternatives=("gpu", "tp", "pp", "cp", "dtype", "recompute"),
        device="gpu",
        described=_described,
        too_large=f"no parallelism uses exactly {flags.gpus} GPUs; use a power of two times 8",
        among=f"on {flags.gpus} of {flags.gpu}",
        advice=(
            "Use more or faster GPUs (--gpus, --gpu), a smaller precision (--dtype fp8), or more",
            "days (--days).",
        ),
        target=lambda _: "megatron",
    )


def tokens_of(text: str, name: str) -> float:
    """Parse a number with a suffix such as K, M or T.

    Raises:
        UserError: not a positive number.

    >>> tokens_of("4M", "batch_tokens")
    4000000.0
    """
    number = number_in(text)
    if number is None or not number > 0:
        raise UserError(f"--{name} {text}: write a number of tokens above zero, as in 4M or 2T")
    return number


def _space(flags: TrainingFlags) -> dict[str, Any]:
    """Return the space of candidate designs: all parallelism in powers of two."""
    model = load_model(flags.model)
    each = tokens_of(flags.batch_tokens, "batch_tokens") / flags.sequence
    batch = 2 ** max(0, round(math.log2(each)))
    powers = [2**n for n in range(int(math.log2(flags.gpus)) + 1)]
    dp = sorted({n for n in (*powers, *(flags.gpus // n for n in powers)) if n <= batch})
    even = [n for n in (2, 4, 5, 6, 7, 8) if model.layers % n == 0][:3]
    unions: list[dict[str, Any]] = [{"schedule": "1f1b", "chunks": 1}]
    unions += [{"schedule": "interleaved", "chunks": even}] if even else []
    return {
        "simulator": "training",
        "axes": {
            "model": flags.model,
            "gpu": flags.gpu.split(","),
            "sequence": flags.sequence,
            "batch": batch,
            "tokens": tokens_of(flags.tokens, "tokens"),
            "target_loss": flags.loss,
            "dtype": flags.dtype.split(","),
            "tp": [n for n in powers if n <= 8],
            "pp": [n for n in powers if n <= 16],
            "cp": [n for n in powers if n <= 2],
            "ep": [1] if not model.experts else [n for n in powers if n <= model.experts],
            "dp": dp,
            "micro_batch": [1, 2],
            "recompute": ["none", "selective", "elementwise", "full"],
            "zero": [1, 3],
        },
        "union": unions,
        "constraints": [f"gpus == {flags.gpus}"],
        "where": f"run_s <= {flags.days * DAY_S:g}",
        "objectives": {COST: "min", "run_s": "min"},
    }


def remarks_on(row: Mapping[str, Any], evaluate: Evaluate) -> str:
    """Return the parts of a step and of memory, and the gains of single changes."""
    carbon = row["run_carbon_g"]
    return " ".join(
        (
            f"Step time: {_shares(row, 's', PARTS)}.",
            f"Memory of the fullest rank: {_shares(row, 'bytes', HELD)}; {_where_full(row)}.",
            f"{_mass(carbon)} of CO2 for the run." if carbon else "",
            f"Throughput gain of single changes: {_faster(row, evaluate)}.",
        )
    )


def _mass(grams: float) -> str:
    """Return a mass in tonnes, or in kilograms below ten tonnes.

    >>> _mass(1.234e9), _mass(68_600.0)
    ('1,234 t', '68.6 kg')
    """
    return f"{grams / TONNE_G:,.0f} t" if grams >= 10 * TONNE_G else f"{grams / KG_G:,.1f} kg"


def _shares(row: Mapping[str, Any], unit: str, parts: Mapping[str, str]) -> str:
    """Return the shares of a metric's parts of at least 1 %."""
    sizes = {name: row[f"{key}_{unit}"] for key, name in parts.items()}
    whole = sum(sizes.values())
    shown = [f"{name} {100 * n / whole:.0f} %" for name, n in sizes.items() if n >= LEAST * whole]
    return ", ".join(shown)


def _where_full(row: Mapping[str, Any]) -> str:
    """Return the pipeline stage and time of the largest memory use."""
    design = TrainingPoint(**_design(row))
    batch = batch_of([design])
    memory = rank_memory(job_of(vars(design)), plans_of(batch))
    return (
        "first stage, when its pipeline is full"
        if memory.is_first[0]
        else "last stage, at the loss"
    )


def _faster(row: Mapping[str, Any], evaluate: Evaluate) -> str:
    """Return the gain in tokens per second of single changes, largest first."""
    changes = list(_changes(_design(row)))
    points = [TrainingPoint(**{**_design(row), **change}) for _, change in changes]
    rates = evaluate(batch_of(points)).column("tokens_per_s").to_pylist()
    gains = [
        (rate / row["tokens_per_s"] - 1.0, words)
        for rate, (words, _) in zip(rates, changes, strict=True)
        if rate is not None
    ]
    best = [
        f"{words} {100 * gain:+.0f} %"
        for gain, words in sorted(gains, reverse=True)
        if gain >= LEAST
    ]
    return "; ".join(best[:MOST_CHANGES]) or "none of the changes tried"


def _design(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a design."""
    return {f.name: row[f.name] for f in fields(TrainingPoint) if f.name in row}


def _changes(design: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield changes of a design, as text and as fields."""
    for dtype in ("fp8", "fp4"):
        if dtype != design["dtype"]:
            yield f"dtype {dtype}", {"dtype": dtype}
    for schedule in ("zero_bubble", "dualpipe", "dualpipe_v"):
        yield f"schedule {schedule}", {"schedule": schedule, "chunks": 1}
    yield "gradients in bf16", {"gradient_dtype": "bf16"}
    yield "CUDA graphs", {"cuda_graphs": True}
    yield "batch x 2", {"batch": 2 * design["batch"]}
    yield "Ulysses attention", {"context_exchange": "ulysses"}
    if design["recompute"] != "none":
        yield "no recomputation", {"recompute": "none"}
    for gpu in NEXT_GPUS:
        if gpu != design["gpu"]:
            yield f"same number of {gpu}", {"gpu": gpu, "cluster": AUTO}


def _described(row: Mapping[str, Any]) -> str:
    """Return a design as text: GPUs and parallelism."""
    gpus = row["tp"] * row["pp"] * row["cp"] * row["dp"]
    names = ("tp", "pp", "cp", "ep", "dp")
    cut = ", ".join(f"{name} {row[name]}" for name in names if row[name] > 1)
    chunks = f" in {row['chunks']} chunks" if row["chunks"] > 1 else ""
    return f"{gpus} {row['gpu']} ({cut}), {row['schedule']}{chunks}"


class TrainingQuestions:
    """Questions about training."""

    flags = TrainingFlags

    def question(self, flags: TrainingFlags) -> Question:
        """Return the question for parsed flags.

        Raises:
            UserError: a number of tokens or days is not positive.
        """
        return question_of(flags, SIMULATOR.evaluate)


QUESTIONS = TrainingQuestions()
