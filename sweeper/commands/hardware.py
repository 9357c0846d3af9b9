"""The commands `fit`, `support`, `measure` and `calibrate`: what is known of a GPU."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulators.core.errors import UserError
from simulators.core.folder import FOLDERS, folded
from sweeper.commands.flags import parse
from sweeper.report.evidence import LEAST, evidence, spoken
from sweeper.report.tables import print_table, print_words
from sweeper.text import human, in_words

_OPERATORS = 4
"""Operators named per phase and evidence level."""
_CHECKS, _FEW_ROWS = 6, 10
"""Accuracy checks printed, and the number of rows below which checks come last."""


def fit(words: list[str]) -> int:
    """Print the models that fit on a GPU, with their context and speeds."""
    chosen = parse("fit", words)
    library = importlib.import_module("planning.fit")
    found = library.models_that_fit(chosen.gpu, chosen.gpus, chosen.engine, chosen.model)
    if chosen.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=1))
        return 0
    lines = [
        [
            "",
            one.model,
            f"{one.parameters / 1e9:.3g}B",
            one.dtype + (f", pp {one.pp}" if one.pp > 1 else ""),
            f"{one.context:,}",
            *(human(float(rate)) for rate in one.tokens_per_s),
            *("-" if s is None else human(s, "s") for s in one.ttft_s),
            f"{100 * one.known:.0f} %",
        ]
        for one in found[: chosen.rows]
    ]
    rates = [f"tokens/s, {users} user{'s' if users > 1 else ''}" for users in library.USERS]
    prompts = [f"TTFT of {prompt // 1024}k" for prompt in library.PROMPTS]
    header = ["", "model", "size", "precision", "context", *rates, *prompts, "measured or fitted"]
    gpu = FOLDERS["gpu"].name_of(chosen.gpu)
    print_table(f"Models that fit on {chosen.gpus} {gpu}, {chosen.engine}", header, lines)
    if len(found) > len(lines):
        print_words(f"The largest {len(lines)} of {len(found)}; more: --rows or --model.")
    print_words(
        "Context: tokens of KV cache, at most the model's limit. Precisions other than the "
        "maker's need a checkpoint of that precision. Rates: prompts of "
        f"{library.PROMPTS[0]:,} tokens, all users together. A `-` is a prompt beyond the context."
    )
    return 0


def support(words: list[str]) -> int:
    """Print what predictions of a model on a GPU by an engine rest on, and their errors."""
    chosen = parse("support", words)
    library = importlib.import_module("planning.fit")
    found = library.support_of(chosen.model, chosen.gpu, chosen.engine)
    model, gpu, engine = found.names
    size = f"{found.gpus} {gpu}" if found.gpus > 1 else gpu
    print(f"{model} on {size} by {engine}, {found.dtype}\n")
    lines = [
        [
            "",
            phase,
            spoken(level),
            f"{100 * share:.0f} %",
            ", ".join(names[:_OPERATORS]) + (" ..." if len(names) > _OPERATORS else ""),
        ]
        for phase, levels in found.operators.items()
        for level, (share, names) in levels.items()
        if share >= LEAST
    ]
    print_table("Evidence", ["", "phase", "level", "share of time", "operators"], lines)
    ends = [
        f"{in_words(name, 's')} {100 * (low - 1):+.0f} % to {100 * (high - 1):+.0f} %"
        for name, (low, high) in found.intervals.items()
    ]
    if ends:
        print_words(f"90 % prediction interval of a chat: {', '.join(ends)}.")
    print()
    checks = evidence("serving").errors_naming(found.names, sys.maxsize)
    named = {check.name: _named(check.name, found.names) for check in checks}
    order = {n: (gpu not in known, -len(known)) for n, known in named.items()}  # its GPU first
    likest = sorted(checks, key=lambda c: (c.rows < _FEW_ROWS, *order[c.name], -c.rows))[:_CHECKS]
    rows = [["", c.name, f"{c.value:.3g} {c.unit}", f"{c.rows:,}"] for c in likest]
    if rows:
        print_table("Errors on measured rows like it", ["", "rows", "error", "count"], rows)
    else:
        print_words(f"No measured rows name {model}, {gpu} or {engine}.")
    return 0


def _named(text: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if folded(name) in folded(text)]


def measure(words: list[str]) -> int:
    """Time kernels on this machine's GPU and write the rows."""
    run = importlib.import_module("planning.measure.run")
    chosen = vars(parse("measure", words))
    chosen["ops"] = chosen["ops"] or ",".join(run.FAMILIES)
    chosen["largest"] = chosen["largest"] or run.UNLIMITED
    ops, dtypes = (chosen.pop(name).split(",") for name in ("ops", "dtype"))
    file = chosen.pop("write")
    name, counts, failed = run.measure(file, ops=ops, dtypes=dtypes, **chosen)
    for reason, count in failed.items():
        print_words(f"skipped {count} calls that PyTorch could not run: {reason}")
    print_words(f"{name}: {', '.join(f'{count} {op}' for op, count in counts.items())}")
    print(f"Written: {file}\nNext   python -m sweeper calibrate GPU --measured {file}")
    return 0


def calibrate(words: list[str]) -> int:
    """Fit a GPU, an edge device or a deployment to measured rows, and print the errors."""
    chosen = parse("calibrate", words)
    if chosen.log:
        chosen.measured = _rows_of_logs(chosen)
        chosen.name = chosen.name or chosen.measured.stem
    if not chosen.name or not chosen.measured:
        raise UserError(
            "calibrate takes a name and --measured FILE, or --log FILE with the load tests of one "
            "server\nAs in: python -m sweeper calibrate --log bench.json --gpu h100_sxm"
        )
    if chosen.source:
        return _transfer(chosen)
    if chosen.own or chosen.ask or chosen.write:
        raise UserError("--own, --ask and --write need --from GPU, the GPU of the measured rows")
    gains, file = _calibrated(chosen)
    lines = [
        [
            gain.name,
            f"{gain.rows:,}",
            f"{gain.before:.1%}",
            f"{gain.after:.1%}",
            "not reachable" if gain.more_rows is None else f"about {gain.more_rows:,}",
        ]
        for gain in gains
    ]
    header = ["", "rows", "error before", "error after", "more rows to halve the error"]
    print_table(f"{chosen.name}: errors on held-out rows", header, lines)
    if file is None:
        print_words(f"No file written: these rows do not improve {chosen.name}.")
        return 0
    print_words(f"Written: {file}{_used_by(file)}")
    if worse := [gain.name for gain in gains if not gain.is_better]:
        print_words(f"Not improved by these rows: {', '.join(worse)}")
    return 0


def _rows_of_logs(chosen: argparse.Namespace) -> Path:
    """Write the rows of the logs of one server as CSV, and return the file."""
    logs = importlib.import_module("planning.calibrate.logs")
    stated = {name: getattr(chosen, name) for name in logs.STATED}
    file: Path = logs.write_rows_of_logs(chosen.log, stated, chosen.name or "")
    print_words(f"Rows of {len(chosen.log)} logs: {file}")
    return file


def _used_by(file: Path) -> str:
    """Return which answers use a calibration without being asked to."""
    deployment = importlib.import_module("planning.calibrate.deployment")
    is_kept = file.stem.startswith(deployment.PREFIX)
    return ". Answers of `ask` use it and say so; without: --measured no" if is_kept else ""


def _calibrated(chosen: argparse.Namespace) -> Any:
    """Calibrate with the rows of a file, whose columns determine the kind of device.

    Returns the gains and the written file.
    """
    edge, deployment, passes, kernels = (
        importlib.import_module(f"planning.calibrate.{name}")
        for name in ("edge", "deployment", "passes", "kernels")
    )
    if edge.is_edge_file(chosen.measured):
        return edge.calibrate_device(chosen.name, chosen.measured, chosen.space)
    if deployment.is_deployment_file(chosen.measured):
        return deployment.calibrate_deployment(chosen.name, chosen.measured)
    if passes.is_pass_file(chosen.measured):
        return passes.calibrate_passes(chosen.name, chosen.measured)
    return kernels.calibrate_gpu(chosen.name, chosen.measured)


def _transfer(chosen: argparse.Namespace) -> int:
    """Predict rows of one GPU on another GPU, or choose the rows to measure there."""
    library = importlib.import_module("planning.calibrate.transfer")
    if chosen.ask:
        if not chosen.write:
            raise UserError("--ask needs --write FILE, the file for those rows")
        count = library.write_rows_to_measure(chosen.measured, chosen.ask, chosen.write)
        print_words(f"Written: {chosen.write}, the {count} most informative rows. To time them:")
        print(f"  sweeper measure --rows {chosen.write} --write own.parquet --gpu {chosen.name}")
        return 0
    found = library.transfer(chosen.source, chosen.name, chosen.measured, chosen.own)
    lines = [
        [
            one.rows.kernel,
            f"{len(one.rows):,}",
            f"{one.ratio:.2f}",
            str(one.own or ""),
            *("" if math.isnan(error) else f"{error:.1%}" for error in (one.error, one.naive)),
        ]
        for one in found
    ]
    header = ["", "rows", "relative time", "own rows", "error", "error of a ratio"]
    print_table(f"{chosen.source} to {chosen.name}", header, lines)
    print_words(
        "Errors on held-out own rows. `error of a ratio` scales by bandwidth or FLOP/s, whichever "
        "is better."
        if chosen.own
        else f"To measure the error, pass a few rows of {chosen.name}: --own FILE."
    )
    if chosen.write:
        library.write_transferred(found, chosen.name, chosen.write)
        print_words(f"Written: {chosen.write}")
    return 0
