"""How is a model best trained on some GPUs? The question by flags, as a space of cuts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.catalog.model import load_model
from simulators.catalog.price import DEFAULT as PUBLIC_CLOUD
from simulators.core.errors import UserError
from simulators.core.questions import Deadline, Question, flag
from simulators.core.words import number_in

COST = "run_cost_usd"
DAY_S = 86_400.0


@dataclass(frozen=True)
class Flags:
    """What may be asked: a model, GPUs, and how many tokens it is trained on."""

    model: str = flag("a model of the catalog, or a config.json")
    gpu: str = flag("GPUs to choose from, as in h100_sxm,b200_sxm")
    gpus: int = flag("how many there are (default 1024)", least=1, default=1024)
    tokens: str = flag("of the run, as in 2T (default 1T)", default="1T")
    batch_tokens: str = flag("of a step, as in 4M (default 4M)", default="4M")
    sequence: int = flag("tokens of a sequence (default 8192)", least=1, default=8192)
    dtype: str = flag("precisions to choose from (default bf16)", default="bf16")
    days: float = flag("in which it must be done (default 365)", default=365.0)


def question_of(flags: Flags) -> Question:
    """Return the question that some flags put.

    Raises:
        UserError: a number of tokens or days means nothing.
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
            "step_s", "mfu", "tokens_per_s_per_gpu", "bubble_share", "memory_bytes",
            "activation_bytes", "state_bytes", "goodput_share", "run_s", "run_energy_j",
        ),
        details=("dtype", "micro_batch", "recompute", "zero"),
        alternatives=("gpu", "tp", "pp", "cp", "dtype", "recompute"),
        device="gpu",
        described=_described,
        too_large=f"no cut uses exactly {flags.gpus} GPUs; take a power of two times 8",
        among=f"on {flags.gpus} of {flags.gpu}",
        advice=("More or faster GPUs (--gpus, --gpu), a narrower precision (--dtype fp8), or more",
                "days (--days) would help."),
        target="megatron",
    )  # fmt: skip


def tokens_of(text: str, name: str) -> float:
    """Return a number with a unit of thousands.

    Raises:
        UserError: it is none.

    >>> tokens_of("4M", "batch_tokens")
    4000000.0
    """
    number = number_in(text)
    if number is None or not number > 0:
        raise UserError(f"--{name} {text}: write a number of tokens above zero, as in 4M or 2T")
    return number


def _space(flags: Flags) -> dict[str, Any]:
    """Return the designs to choose from: all cuts in powers of two, and how they are run."""
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
            "dtype": flags.dtype.split(","),
            "tp": [n for n in powers if n <= 8],
            "pp": [n for n in powers if n <= 16],
            "cp": [n for n in powers if n <= 2],
            "ep": [1] if not model.experts else [n for n in powers if n <= model.experts],
            "dp": dp,
            "micro_batch": [1, 2],
            "recompute": ["none", "selective", "full"],
            "zero": [1, 3],
        },
        "union": unions,
        "constraints": [f"gpus == {flags.gpus}"],
        "where": f"run_s <= {flags.days * DAY_S:g}",
        "objectives": {COST: "min", "run_s": "min"},
    }


def _described(row: Mapping[str, Any]) -> str:
    """Return a design in a phrase: GPUs and how the model is cut over them."""
    gpus = row["tp"] * row["pp"] * row["cp"] * row["dp"]
    names = ("tp", "pp", "cp", "ep", "dp")
    cut = ", ".join(f"{name} {row[name]}" for name in names if row[name] > 1)
    chunks = f" in {row['chunks']} chunks" if row["chunks"] > 1 else ""
    return f"{gpus} {row['gpu']} ({cut}), {row['schedule']}{chunks}"
