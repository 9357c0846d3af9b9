"""Build the space of training designs for the flags of `ask training`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from planning.flags.training import TrainingFlags
from simulators.catalog.model import load_model
from simulators.catalog.price import DEFAULT as PUBLIC_CLOUD
from simulators.core.columns import batch_of
from simulators.core.errors import UserError
from simulators.core.folder import read_toml
from simulators.training.memory import rank_memory, stage_name
from simulators.training.metrics import expected_loss, job_of, plans_of
from simulators.training.point import TrainingPoint
from simulators.training.simulator import SIMULATOR
from sweeper.questions import Deadline, Question

COST = "run_cost_usd"
DAY_S = 86_400.0
TONNE_G, KG_G = 1e6, 1e3
BATCH_TOLERANCE = 0.05
"""Relative deviation from `--batch-tokens` that is accepted for a batch that divides well."""

MIN_SHOWN, MAX_CHANGES = 0.01, 6
"""Smallest share or gain printed, and largest number of gains printed."""

SHOWN = (
    "step_s",
    "mfu",
    "tokens_per_s_per_gpu",
    "bubble_share",
    "memory_bytes",
    "oom_probability",
    "goodput_share",
    "loss",
    "run_s",
    "run_energy_j",
)
"""Metrics of the answer."""

TABLES: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
"""Printed names of the parts of a step and of a rank's memory, and changes of a design."""


def question_of(flags: TrainingFlags) -> Question:
    """Return the question for parsed flags.

    Raises:
        UserError: a number of tokens or days is not positive, or two flags contradict each other.
    """
    for name in ("tokens", "batch_tokens", "days", "oom"):
        if not getattr(flags, name) > 0:
            spelt = name.replace("_", "-")
            raise UserError(f"--{spelt} {getattr(flags, name):g}: write a number above zero")
    for name, other in (("loss", "tokens"), ("batch", "batch_tokens")):
        if getattr(flags, name) and getattr(flags, other) != getattr(TrainingFlags, other):
            spelt = other.replace("_", "-")
            raise UserError(f"--{name} and --{spelt} state the same; write one of them")
    _check_loss(flags)
    if flags.oom > 1:
        raise UserError(f"--oom {flags.oom:g}: write a probability, such as 0.05")
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
        shown=SHOWN,
        asked=remarks_on,
        details=("dtype", "micro_batch", "recompute", "zero"),
        alternatives=("gpu", "tp", "pp", "cp", "dtype", "recompute"),
        device="gpu",
        described=_described,
        too_large=f"no parallelism uses exactly {flags.gpus} GPUs; use a power of two times 8"
        + (f", or a --batch that more replicas divide than {flags.batch}" if flags.batch else ""),
        among=f"on {flags.gpus} of {flags.gpu}",
        advice=(
            "Use more or faster GPUs (--gpus, --gpu)"
            + ("" if "fp8" in flags.dtype else ", a smaller precision (--dtype fp8)"),
            "or more days (--days).",
        ),
        unfit="No design can run: use more or larger GPUs (--gpus, --gpu), shorter sequences "
        "(--sequence), adapters (--lora) or a larger risk of running out of memory (--oom).",
        target=lambda _: "megatron",
    )


def _check_loss(flags: TrainingFlags) -> None:
    """Raise `UserError` for a loss that no number of tokens reaches."""
    least = float(expected_loss(load_model(flags.model).active_parameters, np.array(np.inf)))
    if flags.loss and not flags.loss > least:
        raise UserError(
            f"--loss {flags.loss:g}: no number of tokens reaches it; the scaling law gives "
            f"{flags.model} more than {least:.2f}"
        )


def _space(flags: TrainingFlags) -> dict[str, Any]:
    """Return the space of candidate designs; degrees of parallelism are powers of two."""
    model = load_model(flags.model)
    batch = flags.batch or sequences_of(flags.batch_tokens / flags.sequence)
    powers = [2**n for n in range(int(math.log2(flags.gpus)) + 1)]
    dp = sorted({n for n in (*powers, *(flags.gpus // n for n in powers)) if batch % n == 0})
    recompute = ["none", "selective", "elementwise" if model.experts else "layernorm", "full"]
    even = [n for n in (2, 4, 5, 6, 7, 8) if model.layers % n == 0][:3]
    unions: list[dict[str, Any]] = [{"schedule": "1f1b", "chunks": 1}]
    unions += [{"schedule": "interleaved", "chunks": even}] if even else []
    return {
        "simulator": "training",
        "axes": {
            "model": flags.model,
            "gpu": [name.strip() for name in flags.gpu.split(",")],
            "sequence": flags.sequence,
            "batch": batch,
            "tokens": flags.tokens,
            "target_loss": flags.loss,
            "dtype": flags.dtype.split(","),
            "tp": [n for n in powers if n <= 8],
            "pp": [n for n in powers if n <= 16],
            "cp": [n for n in powers if n <= 2],
            "ep": [1] if not model.experts else [n for n in powers if n <= model.experts],
            "dp": dp,
            "micro_batch": [1, 2],
            "recompute": recompute + ["mla_up_proj"] * model.is_latent,
            "lora_rank": flags.lora,
            "oom_limit": flags.oom,
            "zero": [1, 3],
        },
        "union": unions,
        "constraints": [f"gpus == {flags.gpus}", "chunks == 1 OR pp > 1"],
        "where": f"run_s <= {flags.days * DAY_S:g}",
        "objectives": {COST: "min", "run_s": "min"},
    }


def sequences_of(wanted: float) -> int:
    """Return the sequences of a step: within 5 % of the wanted number, the most divisible one.

    >>> sequences_of(63e6 / 4096), sequences_of(4e6 / 8192), sequences_of(0.5)
    (15360, 512, 1)
    """
    for exponent in range(int(math.log2(max(1.0, 2.0 * wanted))), 0, -1):
        batch = round(wanted / (1 << exponent)) << exponent
        if abs(batch - wanted) <= BATCH_TOLERANCE * wanted:
            return batch
    return max(1, round(wanted))


def remarks_on(row: Mapping[str, Any]) -> str:
    """Return sentences about a design: parts of a step and of memory, gains of single changes."""
    carbon, memory = row["run_carbon_g"], _shares(row, "bytes", "memory_parts")
    tokens, per_step = row["batch"] * row["sequence"], row["dp"] * row["micro_batch"]
    return " ".join(
        (
            f"Batch: {row['batch']:,} sequences, {tokens:,} tokens; each replica accumulates the "
            f"gradients of {row['batch'] // per_step:,} micro-batches.",
            f"Step time: {_shares(row, 's', 'step_parts')}.",
            f"Memory of the fullest rank: {memory}; {_fullest_stage(row)}.",
            f"{_mass(carbon)} of CO2 for the run." if carbon else "",
            f"Throughput gain of single changes: {_gains(row)}.",
        )
    )


def _mass(grams: float) -> str:
    """Return a mass in tonnes, or in kilograms below ten tonnes.

    >>> _mass(1.234e9), _mass(68_600.0)
    ('1,234 t', '68.6 kg')
    """
    return f"{grams / TONNE_G:,.0f} t" if grams >= 10 * TONNE_G else f"{grams / KG_G:,.1f} kg"


def _shares(row: Mapping[str, Any], unit: str, parts: str) -> str:
    """Return the shares of the parts that are at least 1 % of the sum, as text."""
    sizes = {name: row[f"{key}_{unit}"] for key, name in TABLES[parts].items()}
    whole = sum(sizes.values())
    shares = {name: size / whole for name, size in sizes.items() if size >= MIN_SHOWN * whole}
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())


def _fullest_stage(row: Mapping[str, Any]) -> str:
    """Return the pipeline stage with the largest memory use, and when."""
    design = TrainingPoint(**_design(row))
    memory = rank_memory(job_of(vars(design)), plans_of(batch_of(TrainingPoint, vars(design))))
    return stage_name(int(memory.rank[0]), design.pp)


def _gains(row: Mapping[str, Any]) -> str:
    changes = _changes(_design(row))
    points = [{**_design(row), **change} for change in changes.values()]
    answers = SIMULATOR.evaluate(batch_of(TrainingPoint, *points))
    rates = answers.column("tokens_per_s").to_pylist()
    gains = [
        (rate / row["tokens_per_s"] - 1.0, name)
        for name, rate in zip(changes, rates, strict=True)
        if rate is not None
    ]
    best = [f"{name} {100 * g:+.0f} %" for g, name in sorted(gains, reverse=True) if g >= MIN_SHOWN]
    return "; ".join(best[:MAX_CHANGES]) or "none of the changes tried"


def _design(row: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: row[f.name] for f in fields(TrainingPoint) if f.name in row}


def _changes(design: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    fixed = {name: design[name] for name in ("dtype", "recompute", "gpu")}
    changes = {"batch x 2": {"batch": 2 * design["batch"]}, **TABLES["changes"]}
    return {name: change for name, change in changes.items() if not change.items() & fixed.items()}


def _described(row: Mapping[str, Any]) -> str:
    gpus = row["tp"] * row["pp"] * row["cp"] * row["dp"]
    names = ("tp", "pp", "cp", "ep", "dp")
    degrees = ", ".join(f"{name} {row[name]}" for name in names if row[name] > 1)
    chunks = f" in {row['chunks']} chunks" if row["chunks"] > 1 else ""
    return f"{gpus} {row['gpu']} ({degrees}), {row['schedule']}{chunks}"


QUESTIONS = SimpleNamespace(flags=TrainingFlags, question=question_of)
