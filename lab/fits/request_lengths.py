"""Fit the length tables of `chat` and `code` to the Azure LLM inference traces of 2023.

Patel et al., "Splitwise" (2024) published them. Every fifth row is held out; the error is that of
the deciles of prompt and output lengths drawn from the tables against those of the held-out rows.

    python -m lab.fits.request_lengths [chat | code] [--measured FILE --name NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.errors import UserError
from simulators.core.folder import PACKAGE
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.arrivals import stream
from simulators.serving.demand.traces import load_trace
from simulators.serving.demand.workloads import Distribution, Quantiles, Workload

TRACES = {
    "chat": "traces/azure_llm_2023_conv.parquet",
    "code": "traces/azure_llm_2023_code.parquet",
}
HOLD_OUT = 5
"""Every fifth row is held out."""
SPLIT = f"row number modulo {HOLD_OUT} is {HOLD_OUT - 1}: held out"

RANGES = 12
"""Ranges of prompt length; twice as many lower the held-out error by less than 0.002."""

PROMPT_PROBABILITY = (*np.linspace(0.0, 0.98, 99), 0.985, 0.99, 0.995, 0.998, 0.999, 1.0)
OUTPUT_PROBABILITY = (*np.linspace(0.0, 0.95, 39), 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0)
"""Finer towards the tail, which carries much of the mean."""


def fit(prompt: Ints, output: Ints, name: str) -> Workload:
    """Return the quantile tables of measured lengths; ranges of the prompt hold equal shares."""
    inner = np.quantile(prompt, np.linspace(0.0, 1.0, RANGES + 1)[1:-1])
    ends = [*sorted({float(np.floor(end)) for end in inner}), np.inf]
    which = np.searchsorted(ends[:-1], prompt, side="left")
    return Workload(
        name=name,
        prompt=_table(prompt, PROMPT_PROBABILITY),
        prompt_up_to=tuple(ends),
        output=tuple(_table(output[which == i], OUTPUT_PROBABILITY) for i in range(len(ends))),
    )


def held_out_error(workload: Workload, prompt: Ints, output: Ints) -> float:
    """Return the mean relative error of the deciles of lengths drawn from the tables."""
    drawn = workload.draw(stream(0, "held out").random((200_000, 2)))
    deciles = np.linspace(0.1, 0.9, 9)
    errors = [
        np.abs(np.quantile(ours, deciles) / np.quantile(theirs, deciles) - 1.0)
        for ours, theirs in zip(
            (*drawn, sum(drawn)), (prompt, output, prompt + output), strict=True
        )
    ]
    return float(np.mean(errors))


def held_out(count: int) -> Ints:
    """Return which rows of a trace no table was fitted to.

    >>> held_out(10)
    array([4, 9])
    """
    return np.arange(HOLD_OUT - 1, count, HOLD_OUT)


def write(name: str, file: Path, measured: str) -> Path:
    """Fit a workload to a trace and write its calibration; return where."""
    trace = load_trace(str(file))
    kept = np.ones(trace.prompt_tokens.size, bool)
    kept[held_out(kept.size)] = False
    workload = fit(trace.prompt_tokens[kept], trace.output_tokens[kept], name)
    error = held_out_error(workload, trace.prompt_tokens[~kept], trace.output_tokens[~kept])
    lines = [
        f"# Written by `python -m lab.fits.request_lengths {name}`."
        " To change a number, change the fit.",
        "[provenance]",
        f'measured = "{measured}"',
        f'sha256 = "{sha256_of(file)}"',
        f"rows = {int(kept.sum())}",
        f'split = "{SPLIT}"',
        f"held_out_mape = {error:.4f}",
        "",
        "[prompt]",
        *_lines(workload.prompt),
    ]
    for end, table in zip(workload.prompt_up_to, workload.output, strict=True):
        lines += ["", "[[output]]"]
        lines += [f"prompt_up_to = {end:.0f}"] if end < np.inf else []
        lines += _lines(table)
    target = PACKAGE / "serving" / "calibration" / "workloads" / f"{name}.toml"
    if name not in TRACES:
        target = Path("catalog") / "workloads" / f"{name}.toml"
    write_calibration(target, "\n".join(lines))
    return target


def _table(tokens: Ints, probability: Sequence[float]) -> Quantiles:
    values: Floats = np.quantile(tokens, probability)
    return Quantiles(
        tuple(round(float(p), 4) for p in probability), tuple(float(round(v, 1)) for v in values)
    )


def _lines(table: Distribution) -> list[str]:
    assert isinstance(table, Quantiles)  # `fit` makes no others
    return [f"probability = {_listed(table.probability)}", f"tokens = {_listed(table.tokens)}"]


def _listed(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"


def main() -> None:
    """Fit what the command line asks for."""
    parser = argparse.ArgumentParser(description="fit the length tables of workloads")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TRACES)}; all if none is given")
    parser.add_argument("--measured", help="a trace of one's own, for a workload of the name given")
    options = parser.parse_args()
    if options.measured:
        for name in options.names or ["mine"]:
            print(write(name, Path(options.measured), options.measured))
        return
    reference = reference_folder()
    if reference is None:
        raise UserError("the traces are absent: set $SWEEPER_REFERENCE to the reference folder")
    for name in options.names or TRACES:
        if name not in TRACES:
            raise UserError(f"'{name}' is no workload we fit; give --measured FILE")
        print(write(name, reference / TRACES[name], TRACES[name]))


if __name__ == "__main__":
    main()
