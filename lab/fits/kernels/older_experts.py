"""Fit how much slower experts were in older releases of engines, to printed results of 2025.

Runtimes are fitted to deployments of 2026. Results printed in documentation are up to a year older,
when engines ran experts by kernels tuned for few models. Factors multiply the pace of experts with
many rows. vLLM's and SGLang's experts were of one origin (`fused_moe` in Triton), which was timed
under SGLang, and share a factor; another is of four-bit weights on GPUs that OpenAI's kernels run
on; one of 8-bit weights widened to 16, whose Marlin kernels were not timed. Marlin's four-bit
kernels are unchanged. Each architecture has its own factor, shrunk towards that of all by one
model. TensorRT-LLM has none: its five results are four times as slow as predicted, and no factor
fits both of their models.

Factors are fitted where kernels like those that ran were measured. They minimise the mean absolute
log error of tokens per second and time per token; models weigh as the square root of their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration
from lab.fits.left_out import FOLDER as LEFT_OUT
from lab.fits.left_out import older_run_cache
from lab.tables.result_blocks import BLOCKS, ResultBlock, blocks
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

FOLDER = PACKAGE / RUNTIMES.path
OLDER = {"vllm_0_13": "vllm", "sglang_0_5_8": "sglang"}
"""Runtimes of 2025 that are written, and their engines."""

EXPERTS = "experts"
KINDS = EXPERTS, f"{NARROW}{EXPERTS}", f"{WIDENED}{EXPERTS}"

UNCHANGED = {"vllm": {f"{NARROW}{EXPERTS}.{chip}": 1.0 for chip in MARLIN_ARCHITECTURES}}
"""Marlin's four-bit kernels, by engine."""

KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "sglang": {EXPERTS: ("sglang",)},
    "vllm": {f"{EXPERTS}.ampere": ("sglang",), f"{NARROW}{EXPERTS}.ampere": ("vllm",)},
}
"""Kernels of experts that older releases ran where current ones have others: `fused_moe` on
Blackwell, and on Ampere, where vLLM's own were not measured."""

LIKE = {"sglang": "sglang_0_5_9"}
"""Releases that older ones equal in all else, where those are not the current ones."""

UNMEASURED = "triton"
"""An attention backend that was not timed for latent attention."""

TRIED = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Factors that are simulated; errors between them are interpolated."""

STEPS = np.arange(TRIED[0], TRIED[-1] + 0.01, 0.05)


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the older releases that are asked for, and the same without each model."""
    rows, error = _errors(
        [b for b in blocks(reference)[0] if b.point.runtime in OLDER and _is_plain(b)]
    )
    models = np.array([row.point.model for row in rows])
    kinds = np.array([_kind(row) for row in rows])
    chips = np.array([load_gpu(row.point.gpu).architecture for row in rows])
    named = np.char.add(np.char.add(kinds, "."), chips)
    is_measured = np.array([_is_measured(row) for row in rows])
    is_measured &= ~np.isin(named, list(UNCHANGED["vllm"]))

    def factors(kept: Bools) -> dict[str, float]:
        found = {}
        for kind in KINDS:
            whole = kept & is_measured & (kinds == kind)
            of_all = found[kind] = _best(error[:, whole], models[whole])
            for chip in np.unique(chips[whole]).tolist():
                mine = whole & (chips == chip)
                best, count = _best(error[:, mine], models[mine]), np.unique(models[mine]).size
                found[f"{kind}.{chip}"] = shrunk(best, of_all, count)
        return found

    without = {model: factors(models != model) for model in np.unique(models).tolist()}
    held_out = []
    for i, (row, kind, name) in enumerate(zip(rows, kinds, named, strict=True)):
        known = without[row.point.model] | UNCHANGED.get(row.framework, {})
        held_out.append(_at(error[:, [i]], known.get(name) or known[kind])[0, 0])
    found = factors(np.ones(models.size, bool))
    for name, engine in OLDER.items():
        if only and name not in only:
            continue
        like, same = LIKE.get(engine, engine), UNCHANGED.get(engine, {})
        whole = Calibration(
            name=name,
            content={
                "runtime": {"like": like},
                "batch_times": found | same,
                "kernels": KERNELS[engine],
            },
            tables=[BLOCKS],
            rows=int(is_measured.sum()),
            split="each model in turn",
            errors=np.expm1(np.array(held_out)),
        )
        left_out = {model: {"batch_times": one | same} for model, one in without.items()}
        yield whole
        yield replace(whole, folder=LEFT_OUT / "runtimes", content={"without": left_out})


def shrunk(own: float, of_all: float, models: int) -> float:
    """Return the factor of an architecture, shrunk towards the global one by one pseudo-model.

    >>> [shrunk(4.0, 1.0, models) for models in (1, 3)]
    [2.0, 2.8284271247461903]
    """
    return float((own**models * of_all) ** (1.0 / (models + 1.0)))


def _is_plain(block: ResultBlock) -> bool:
    """Return whether a result is of experts without drafts, whose acceptance is not known."""
    return load_model(block.point.model).experts > 0 and block.point.speculation.method == NOTHING


def _is_measured(block: ResultBlock) -> bool:
    """Return whether the expert kernels of a result were timed on the same GPU."""
    model, (_, _, attention, _) = load_model(block.point.model), block.options["engine"]
    is_timed = not (model.fp8_channels and block.point.dtype == "fp8_block")
    is_timed = is_timed and not (model.is_latent and attention == UNMEASURED)
    return is_timed and block.point.gpu in calibrations("tensor")


def _kind(block: ResultBlock) -> str:
    """Return the kind of a result's experts."""
    how = precision(block.point.dtype)
    stored, multiplied = how.expert_weights or how.weights, how.expert_compute or how.compute
    if BYTES[stored] >= BYTES[multiplied]:
        return EXPERTS
    return KINDS[2 if BYTES[stored] > BYTES["int4"] else 1]


def _errors(results: Sequence[ResultBlock]) -> tuple[list[ResultBlock], Floats]:
    """Return the results that can be simulated, and log(predicted / measured) by factor and row.

    The last axis is tokens per second and time per token.
    """
    rows, errors = [], []
    for block in results:
        try:
            errors.append([_log_ratios(block, factor) for factor in TRIED])
        except Infeasible:
            continue
        rows.append(block)
    return rows, np.array(errors).transpose(1, 0, 2)


def _log_ratios(block: ResultBlock, factor: float) -> tuple[float, float]:
    """Return the errors of a result under its release, with experts of a batch slowed down."""
    like = LIKE.get(block.framework, block.framework)
    decode = {"decode": (block.decode,)} if block.decode else {}
    kernels = {**load_runtime(like).kernels, **KERNELS[block.framework], **decode}
    cache = older_run_cache(like, block.group, dict.fromkeys(KINDS, factor), kernels)
    metrics = simulate(replace(block.point, runtime=like), cache)
    assert metrics.tpot_mean_s is not None
    rates = metrics.tokens_per_s / block.tokens_per_s, metrics.tpot_mean_s / block.tpot_s
    return float(np.log(rates[0])), float(np.log(rates[1]))


def _best(error: Floats, models: np.ndarray) -> float:
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
