"""Fit by how much experts were slower in older releases of engines, to results of their time.

Runtimes are fitted to deployments of 2026. Results printed in documentation are up to a year older,
when engines ran experts by kernels tuned for few models. So factors multiply the pace of experts
that meet many rows; lone ones take what they take today, in those results too.
vLLM's and SGLang's experts were of one origin (`fused_moe`, in Triton), which was timed under
SGLang, and have one factor; another where weights have four bits, on boards that OpenAI's kernels
run on; and one where 8 bits are widened to 16, whose kernels are Marlin's but were timed nowhere.
Marlin's of four bits are today's: they have none. Kernels were new on one architecture and tuned
for years on another, so each has its own, of which few models say little: that of all counts as one
model more.
TensorRT-LLM has none: its five results are four times as slow as ours, and no factor mends both of
their models.

The factors are fitted where kernels like those that ran were measured; what is left of other
results is not the release's part alone. They make the mean |log(predicted / measured)| of tokens a
second and of times per token least; models count as the square root of their rows, and each model
is left out in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.left_out import older_shelf
from lab.tables.result_blocks import BLOCKS, Block, blocks
from lab.tables.rows import Bools
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.replica import NARROW, NOTHING, WIDENED, load_runtime
from simulators.core.errors import Infeasible
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.core.jit import Floats
from simulators.evidence.calibration_files import calibrations
from simulators.kernels.families.experts import MARLIN_ARCHITECTURES
from simulators.serving.simulator import simulate
from simulators.workload.precision import BYTES, precision

Strings = NDArray[np.str_]

FOLDER = PACKAGE / RUNTIMES.path
SPLIT = "each model in turn"

EXPERTS = "experts"
KINDS = EXPERTS, f"{NARROW}{EXPERTS}", f"{WIDENED}{EXPERTS}"

UNCHANGED = {"vllm": {f"{NARROW}{EXPERTS}.{board}": 1.0 for board in MARLIN_ARCHITECTURES}}
"""Kernels of four bits that are Marlin's, then as now, by engine."""

KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "sglang": {EXPERTS: ("sglang",)},
    "vllm": {f"{EXPERTS}.ampere": ("sglang",), f"{NARROW}{EXPERTS}.ampere": ("vllm",)},
}
"""Whose kernels of experts older releases ran, where today's have others besides: `fused_moe` on
Blackwell, and on Ampere, where vLLM's own were not measured."""

OLDER = {"vllm_0_13": "vllm", "sglang_0_5_8": "sglang"}
"""Runtimes of 2025 that are written, and their engines."""

LIKE = {"sglang": "sglang_0_5_9"}
"""Releases that older ones are like in all else, by engine, where those are not today's."""

UNMEASURED = "triton"
"""What latent attention was asked to be run by, which nobody timed on a board of its kind."""

TRIED = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Factors that are simulated; between them errors are interpolated."""

STEPS = np.arange(TRIED[0], TRIED[-1] + 0.01, 0.05)


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the older releases that are asked for, and the same without each model."""
    told, _ = blocks(reference)
    rows, error = _errors([b for b in told if b.point.runtime in OLDER and _is_plain(b)])
    models = np.array([row.point.model for row in rows])
    is_measured = np.array([_is_measured(row) for row in rows])
    kinds = np.array([_kind(row) for row in rows])
    boards = np.array([load_gpu(row.point.gpu).architecture for row in rows])
    named = np.char.add(np.char.add(kinds, "."), boards)
    is_measured &= ~np.isin(named, list(UNCHANGED["vllm"]))

    def factors(kept: Bools) -> dict[str, float]:
        found = {}
        for kind in KINDS:
            whole = kept & is_measured & (kinds == kind)
            of_all = found[kind] = _best(error[:, whole], models[whole])
            for board in np.unique(boards[whole]).tolist():
                chosen = whole & (boards == board)
                best, whose = _best(error[:, chosen], models[chosen]), models[chosen]
                found[f"{kind}.{board}"] = leaning(best, of_all, np.unique(whose).size)
        return found

    without = {model: factors(models != model) for model in np.unique(models).tolist()}
    held_out = [
        _at(
            error[:, [i]],
            UNCHANGED.get(row.framework, {}).get(name)
            or without[row.point.model].get(name)
            or without[row.point.model][kind],
        )[0, 0]
        for i, (row, kind, name) in enumerate(zip(rows, kinds, named, strict=True))
    ]
    found = factors(np.ones(models.size, bool))
    for name, engine in OLDER.items():
        kernels = [f'"{family}" = {list(names)}' for family, names in KERNELS[engine].items()]
        like, same = LIKE.get(engine, engine), UNCHANGED.get(engine, {})
        whole = calibration(
            name,
            hashes(reference, [BLOCKS]),
            rows=int(is_measured.sum()),
            split=SPLIT,
            held_out=np.expm1(np.array(held_out)),
            lines=[
                "",
                "[runtime]",
                f'like = "{like}"',
                *_lines(found | same),
                "",
                "[kernels]",
                *(line.replace("'", '"') for line in kernels),
            ],
        )
        tail = [line for model, one in without.items() for line in _lines(one | same, model)]
        if not only or name in only:
            yield whole
            yield replace(whole, folder=LEFT_OUT / "runtimes", lines=tail)


def leaning(own: float, of_all: float, models: int) -> float:
    """Return the factor of an architecture: its models' own, and that of all as one model more.

    >>> [leaning(4.0, 1.0, models) for models in (1, 3)]
    [2.0, 2.8284271247461903]
    """
    return float((own**models * of_all) ** (1.0 / (models + 1.0)))


def _is_plain(block: Block) -> bool:
    """Say whether a result is of experts, and of no drafts, of which nobody knows how many hold."""
    return load_model(block.point.model).experts > 0 and block.point.speculation == NOTHING


def _is_measured(block: Block) -> bool:
    """Say whether kernels like those that ran were timed on its GPU: not of scaled channels."""
    model, (_, _, attention, _) = load_model(block.point.model), block.options["engine"]
    is_timed = not (model.fp8_channels and block.point.dtype == "fp8_block")
    is_timed = is_timed and not (model.is_latent and attention == UNMEASURED)
    return is_timed and block.point.gpu in calibrations("tensor")


def _kind(block: Block) -> str:
    """Return the kind of a result's experts."""
    how = precision(block.point.dtype)
    stored, multiplied = how.expert_weights or how.weights, how.expert_compute or how.compute
    if BYTES[stored] >= BYTES[multiplied]:
        return EXPERTS
    return KINDS[2 if BYTES[stored] > BYTES["int4"] else 1]


def _errors(told: Sequence[Block]) -> tuple[list[Block], Floats]:
    """Return the results that can be simulated, and log(predicted / measured) by factor and row.

    The last axis is tokens a second and the time per token.
    """
    rows, errors = [], []
    for block in told:
        try:
            errors.append([_log_ratios(block, factor) for factor in TRIED])
        except Infeasible:
            continue
        rows.append(block)
    return rows, np.array(errors).transpose(1, 0, 2)


def _log_ratios(block: Block, factor: float) -> tuple[float, float]:
    """Return the errors of a result under its release, with slower experts of a batch."""
    like = LIKE.get(block.framework, block.framework)
    decode = {"decode": (block.decode,)} if block.decode else {}
    kernels = {**load_runtime(like).kernels, **KERNELS[block.framework], **decode}
    shelf = older_shelf(like, block.group, dict.fromkeys(KINDS, factor), kernels)
    metrics = simulate(replace(block.point, runtime=like), shelf)
    assert metrics.tpot_mean_s is not None
    rates = metrics.tokens_per_s / block.tokens_per_s, metrics.tpot_mean_s / block.tpot_s
    return float(np.log(rates[0])), float(np.log(rates[1]))


def _best(error: Floats, models: Strings) -> float:
    """Return the factor of the least mean error."""
    _, index, count = np.unique(models, return_inverse=True, return_counts=True)
    weight = count[index] ** -0.5
    size = [float(weight @ np.abs(_at(error, step)).mean(axis=1)) for step in STEPS.tolist()]
    return float(STEPS[int(np.argmin(size))])


def _at(error: Floats, factor: float) -> Floats:
    """Return the errors of rows under a factor."""
    high = int(np.clip(np.searchsorted(TRIED, factor), 1, len(TRIED) - 1))
    share = (factor - TRIED[high - 1]) / (TRIED[high] - TRIED[high - 1])
    found: Floats = error[high - 1] + share * (error[high] - error[high - 1])
    return found


def _lines(factors: Mapping[str, float], model: str = "") -> list[str]:
    """Return factors as TOML, of all rows or without a model's."""
    prefix = f'without."{model}".' if model else ""
    quoted = {f'"{kernels}"': factor for kernels, factor in factors.items()}
    return table_lines(f"{prefix}batch_times", quoted, ".4g")
