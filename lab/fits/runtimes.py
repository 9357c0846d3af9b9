"""Fit gaps between kernels and host times of the plain ways to run a model.

    graphs      engines that replay CUDA graphs
    eager       a host that launches the kernels of a layer, in one process
    eager_tp    the same where several processes, one a GPU, run in step

The mean |log(predicted / measured)| is least: a factor too high weighs as much as one too low.
Whole groups of rows are held out, never single rows. Runtimes rest on the kernels' prices: fit them
again when those change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, table_lines
from lab.tables.forward_passes import (
    CONCURRENT,
    REUSE,
    SPLITWISE,
    TINYCHAT,
    Case,
    concurrent,
    splitwise,
    tinychat,
    tinychat_prompts,
)
from simulators.composition.replica import ANY, Runtime
from simulators.core.folder import PACKAGE, RUNTIMES
from simulators.core.jit import Floats

Split = tuple[list[Case], list[Case]]

FOLDER = PACKAGE / RUNTIMES.path
NEGLIGIBLE_S = 1e-8
"""No wait of a host is shorter than some tens of cycles."""
FACTORS = (4.0, 2.0, 1.4, 1.15, 1.05, 1.02)
BY_HOST = ("launch_layer_s", "prompt_layer_s", "prompt_token_s", "prompt_ktoken_s")


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the runtimes that are asked for, of all unless some are."""
    for name, fit in {"graphs": _graphs, "eager": _eager, "eager_tp": _eager_tp}.items():
        if not only or name in only:
            yield fit(reference)


def _graphs(reference: Path) -> Calibration:
    """Fit gaps and host time to dense models served on H100; tp 4 is held out."""
    split = _split(concurrent(reference, "h100_sxm"))

    def runtime(numbers: Floats) -> Runtime:
        return Runtime(
            name="graphs",
            layer_s=numbers[0],
            host_s=numbers[1],
            sequence_s=numbers[2],
            boards=("h100_sxm",),
        )

    found = _least(runtime, split[0], (1e-5, 1e-3, 1e-5))
    how = "Llama-3.1 8B and 70B, aggregated, H100: tp 1, 2, 8 fitted; tp 4 held out"
    return _calibration(reference, [CONCURRENT], found, [split], how)


def _eager(reference: Path) -> Calibration:
    """Fit the host's launching to batch-1 decodes on A100; the RTX 4090 is held out.

    Then, to prompts computed whole, what it launches for theirs: those behind a cache are held out.
    """
    columns = ("int4_awq_ms_per_token", "fp16_ms_per_token")
    split = _split(case for column in columns for case in tinychat(reference, column))

    prompts = _split(tinychat_prompts(reference, reused=False))[0]

    def decoding(numbers: Floats) -> Runtime:
        return Runtime(
            name="eager",
            layer_s=0.0,
            host_s=numbers[0],
            sequence_s=0.0,
            launch_layer_s={ANY: numbers[1]},
            boards=("a100_sxm",),
            across="eager_tp",
            host="AWQ's TinyChat of 2023, one process",
        )

    decoded = _least(decoding, split[0], (1e-4, 1e-4))

    def prompting(numbers: Floats) -> Runtime:
        return dataclasses.replace(decoded, prompt_layer_s={ANY: numbers[0]})

    found = _least(prompting, prompts, (4e-4,))
    reused = list(tinychat_prompts(reference, reused=True))
    how = (
        "decode at batch 1, 4-bit and fp16: A100 fitted, RTX 4090 held out; "
        "short prompts on RTX 4090: computed fitted, behind a cache held out"
    )
    return _calibration(reference, [TINYCHAT, REUSE], found, [split, (prompts, reused)], how)


def _eager_tp(reference: Path) -> Calibration:
    """Fit the host's launching to Llama-2-70B decodes at tp 2 and 8; tp 4 is held out.

    Then, to single prompts of the same splits, what prompts need more: launches, and tokens made
    of text.
    """
    decodes, prompts = (_split(splitwise(reference, phase)) for phase in ("token", "prompt"))

    def decoding(numbers: Floats) -> Runtime:
        return Runtime(
            name="eager_tp",
            layer_s=numbers[0],
            host_s=0.0,
            sequence_s=numbers[1],
            launch_layer_s=_by_host(numbers[2:4]),
            boards=("a100_sxm", "h100_sxm"),
            host="vLLM of 2023, one process a GPU",
            is_fused=False,
        )

    decoded = _least(decoding, decodes[0], (1e-5, 1e-5, 4e-4, 4e-4))

    def prompting(numbers: Floats) -> Runtime:
        return dataclasses.replace(
            decoded,
            prompt_layer_s=_by_host(numbers[0:2]),
            prompt_token_s={ANY: numbers[2]},
            prompt_ktoken_s={ANY: numbers[3]},
        )

    found = _least(prompting, _distinct(prompts[0]), (6e-4, 6e-4, 1e-5, 6e-6))
    how = "Llama-2-70B on DGX A100 and H100, token and prompt times: tp 2, 8 fitted, 4 held out"
    return _calibration(reference, [SPLITWISE], found, [decodes, prompts], how)


def _by_host(numbers: Floats) -> dict[str, float]:
    """Return a number by host, and their mean for any other."""
    return {"dgx_a100": numbers[0], "dgx_h100": numbers[1], ANY: float(np.mean(numbers))}


def _distinct(cases: Sequence[Case]) -> list[Case]:
    """Return one case for all repeats of a configuration, with their mean time."""
    repeats: dict[tuple[str, float], list[Case]] = {}
    for case in cases:
        key = (case.group, float(case.terms[0].step.prefill_tokens))
        repeats.setdefault(key, []).append(case)
    return [
        dataclasses.replace(same[0], measured_s=float(np.mean([c.measured_s for c in same])))
        for same in repeats.values()
    ]


def _split(cases: Iterable[Case]) -> Split:
    """Return the cases fitted to and those held out."""
    known = list(cases)
    return [c for c in known if not c.is_test], [c for c in known if c.is_test]


def _errors(cases: Sequence[Case], runtime: Runtime) -> Floats:
    return np.array([abs(np.log(c.predicted_s(runtime) / c.measured_s)) for c in cases])


def _least(
    runtime: Callable[[Floats], Runtime], cases: Sequence[Case], start: Sequence[float]
) -> Runtime:
    """Return the runtime of a small loss: one number after another, in ever finer factors.

    What ends below `NEGLIGIBLE_S` is 0.
    """
    best = np.array(start)
    least = float(_errors(cases, runtime(best)).mean())
    for factor in FACTORS:
        improved = True
        while improved:
            improved = False
            for trial in _neighbours(best, factor):
                loss = float(_errors(cases, runtime(trial)).mean())
                if loss < least - 1e-9:
                    best, least, improved = trial, loss, True
    return runtime(np.where(best < NEGLIGIBLE_S, 0.0, best))


def _neighbours(x: Floats, step: float) -> Iterator[Floats]:
    for i in range(x.size):
        for factor in (step, 1.0 / step):
            trial = x.copy()
            trial[i] *= factor
            yield trial


def _calibration(
    reference: Path, tables: Sequence[str], runtime: Runtime, splits: Sequence[Split], how: str
) -> Calibration:
    own = {name: getattr(runtime, name) for name in ("layer_s", "host_s", "sequence_s")}
    more = [] if runtime.is_fused else ["is_fused = false"]
    words = {"across": runtime.across, "host": runtime.host}
    more += [f'{name} = "{word}"' for name, word in words.items() if word]
    lines = ["", "[runtime]", f"boards = {json.dumps(runtime.boards)}", *more]
    lines += [f"{name} = {value:.3g}" for name, value in own.items()]
    for name in BY_HOST:
        if numbers := getattr(runtime, name):
            lines += table_lines(f"runtime.{name}", numbers)
    off = np.concatenate([_errors(tested, runtime) for _, tested in splits])
    return calibration(
        runtime.name,
        hashes(reference, tables),
        rows=sum(len(fitted) for fitted, _ in splits),
        held_out=np.expm1(off),
        split=how,
        lines=lines,
    )
