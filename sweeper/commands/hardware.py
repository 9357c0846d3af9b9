"""The commands `measure` and `calibrate`: time kernels and fit hardware to measured rows."""

from __future__ import annotations

import argparse
import importlib
import math
from typing import Any

from simulators.core.errors import UserError
from sweeper.commands.flags import parse
from sweeper.report.tables import print_table, print_words


def measure(words: list[str]) -> int:
    """Time kernels on this machine's GPU and write the rows."""
    run = importlib.import_module("planning.measure.run")
    chosen = vars(parse("measure", words, ops=run.FAMILIES, dtype=run.DTYPES))
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
    print_words(f"Written: {file}")
    if worse := [gain.name for gain in gains if not gain.is_better]:
        print_words(f"Not improved by these rows: {', '.join(worse)}")
    return 0


def _calibrated(chosen: argparse.Namespace) -> Any:
    """Calibrate with the rows of a file, whose columns determine the kind of device.

    Returns the gains and the written file.
    """
    edge, deployment, kernels = (
        importlib.import_module(f"planning.calibrate.{name}")
        for name in ("edge", "deployment", "kernels")
    )
    if edge.is_edge_file(chosen.measured):
        return edge.calibrate_device(chosen.name, chosen.measured, chosen.space)
    if deployment.is_deployment_file(chosen.measured):
        return deployment.calibrate_deployment(chosen.name, chosen.measured)
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
