"""Errors of NCCL's curves, of their growth with ranks and of their intervals, as measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, mean_error, was_fitted, within
from lab.fits.collectives import (
    COLLECTIVES,
    NVLINK,
    errors_between,
    errors_of,
    growth_coverage,
    growth_errors,
    held_out_coverage,
    held_out_errors,
)
from lab.parity.astra_sim import single_ns
from lab.tables.collectives import NCCL, Curves, Libraries, read_libraries
from simulators.collectives.measured import NETWORKS, measured_time
from simulators.collectives.topologies.plan import plan_of
from simulators.core.contract import Check
from simulators.core.jit import Floats, Ints

NEEDS = (NCCL,)
KIB, MIB = 2.0**10, 2.0**20
HANDFUL = 5
"""Sizes per curve that a new interconnect is fitted from."""


def checks(reference: Path, rows: str) -> Iterator[Check]:
    """Yield the errors of sizes, ranks and intervals; `all` judges the shipped curves on all."""
    fitted = was_fitted(map(NETWORKS.find, NETWORKS.names()), [reference / NCCL])
    held_out = fitted and rows != "all"
    measured = read_libraries(reference)
    for gpu in measured:
        if not NETWORKS.has(gpu):
            yield absent(f"collectives/{gpu}", "no network of this name is described", "%")
    table = {gpu: libraries for gpu, libraries in measured.items() if NETWORKS.has(gpu)}
    everything = []
    for gpu, libraries in table.items():
        for library, curves in libraries.items():
            parts = _errors(gpu, library, curves, held_out=held_out)
            everything += [parts[0]] if library == "nccl" else []
            yield _sizes(f"{library}_{gpu}", curves, *parts)
    median = np.median(_percent(np.concatenate(everything))) if everything else np.nan
    yield _mean("nccl", everything, 7.0, f"all GPUs, median {median:.1f}")
    yield from _growth(table)
    yield _mean("ranks_4_from_2_and_8", _between(table), 15.0, "NVLink GPUs")
    yield from _coverage(table)
    yield _mean(
        "new_interconnect",
        _handful(table),
        None,
        f"each NVLink GPU from {HANDFUL} sizes per curve",
    )
    yield from _eight_h100(table, held_out=held_out)


def _errors(
    gpu: str, library: str, measured: Curves, *, held_out: bool
) -> tuple[Floats, Ints, Floats, Floats]:
    """Return log errors with their rows' curve, octave and band."""
    if held_out:
        held, errors = held_out_errors(measured)
        return errors, held.curve, held.octave, np.zeros(0)
    errors, bands = np.zeros(measured.curve.size), np.zeros(measured.curve.size)
    for key in measured.keys:
        mine = measured.of(key)
        timed = measured_time(
            gpu=gpu,
            library=library,
            collective=key[0],
            dtype=key[1],
            ranks=key[2],
            size_bytes=np.exp2(measured.octave[mine]),
        )
        errors[mine] = np.log(timed.time_s) - measured.log_s[mine]
        bands[mine] = np.log(timed.hi_s / timed.time_s)
    return errors, measured.curve, measured.octave, bands


def _percent(errors: Floats) -> Floats:
    """Return how far log errors are off, in percent."""
    return np.asarray(100.0 * np.abs(np.expm1(errors)), np.float64)


def _mean_percent(errors: Floats) -> float:
    return round(float(_percent(errors).mean()), 2)


def _mean(name: str, parts: Iterable[Floats], limit: float | None, note: str) -> Check:
    """Return the mean error of log errors in parts, in percent."""
    errors = np.concatenate([np.zeros(0), *parts])
    return mean_error(f"collectives/{name}", np.expm1(errors), limit, note)


def _sizes(
    name: str, measured: Curves, errors: Floats, curve: Ints, _: Floats, bands: Floats
) -> Check:
    """Return the error of one GPU and library, with that of each collective."""
    by: dict[str, list[int]] = {}
    for code, key in enumerate(measured.keys):
        by.setdefault(key[0], []).append(code)
    parts = {collective: errors[np.isin(curve, codes)] for collective, codes in by.items()}
    said = [
        f"{collective} {_mean_percent(part):.1f}" for collective, part in parts.items() if part.size
    ]
    if bands.size:
        said.append(f"covered {100 * np.mean(np.abs(errors) <= bands):.0f} %")
    limit = 7.0 if name.startswith("nccl_") else None
    how = "shipped curves" if bands.size else "sizes held out"
    return _mean(name, [errors], limit, f"{how}: {', '.join(said)}")


def _growth(table: Libraries) -> Iterator[Check]:
    """Yield the errors at 8 ranks of growth learnt from other GPUs."""
    found = {collective: growth_errors(table, NVLINK, collective) for collective in COLLECTIVES}
    for collective, by_gpu in found.items():
        note = ", ".join(f"{gpu} {_mean_percent(part):.1f}" for gpu, part in by_gpu.items())
        yield _mean(f"ranks_8_from_4_{collective}", by_gpu.values(), 15.0, note)
    parts = [part for by_gpu in found.values() for part in by_gpu.values()]
    yield _mean("ranks_8_from_4", parts, 15.0, "NVLink GPUs; growth learnt from the other GPUs")


def _between(table: Libraries) -> Iterator[Floats]:
    """Yield the errors at 4 ranks of curves between those at 2 and 8."""
    for _, measured in _nvlink(table):
        for key in measured.keys:
            if key[2] == 4:
                yield errors_between(measured, key)


def _nvlink(table: Libraries) -> Iterator[tuple[str, Curves]]:
    for gpu in NVLINK:
        if "nccl" in table.get(gpu, {}):
            yield gpu, table[gpu]["nccl"]


def _coverage(table: Libraries) -> Iterator[Check]:
    """Yield the share of rows inside intervals fitted without them: by sizes, then by ranks."""
    sizes = [held_out_coverage(one["nccl"]) for one in table.values() if "nccl" in one]
    ranks = [growth_coverage(table, NVLINK, collective) for collective in COLLECTIVES]
    for name, parts in (("covered_sizes", sizes), ("covered_ranks_8_from_4", ranks)):
        note = "inside 90 % intervals fitted without them"
        lines = within(f"collectives/{name}", parts, note)
        yield from lines or [absent(f"collectives/{name}", unit="%")]


def _handful(table: Libraries) -> Iterator[Floats]:
    """Yield the errors of each NVLink GPU fitted anew from a few sizes of every curve."""
    for _, measured in _nvlink(table):
        seen = np.zeros(measured.curve.size, bool)
        for key in measured.keys:
            mine = np.flatnonzero(measured.of(key))
            seen[mine[np.round(np.linspace(0, mine.size - 1, HANDFUL)).astype(int)]] = True
        yield errors_of(measured, ~seen)


def _eight_h100(table: Libraries, *, held_out: bool) -> Iterator[Check]:
    """Yield the errors of the default, of a peer's ring and of halving-doubling on eight H100."""
    measured = table.get("h100_sxm", {}).get("nccl")
    name, key = "hgx_h100_default", ("all_reduce", "fp16", 8)
    if measured is None or key not in measured.keys:
        yield absent(f"collectives/{name}", unit="%")
        return
    errors, curve, octave, _ = _errors("h100_sxm", "nccl", measured, held_out=held_out)
    inside = curve == measured.keys.index(key)
    inside &= (octave >= np.log2(64 * KIB)) & (octave <= np.log2(512 * MIB))
    worst = np.max(_percent(errors[inside]), initial=0.0)
    yield _mean(name, [errors[inside]], 10.0, f"64 KiB to 512 MiB, worst {worst:.1f} %")
    large = measured.take(measured.of(key) & (measured.octave >= 16))
    sizes = [round(size) for size in np.exp2(large.octave).tolist()]
    for algorithm in ("ring", "halving_doubling"):
        plan = plan_of("hgx_h100", algorithm)
        modelled_ns = np.array([single_ns(plan, key[0], size) for size in sizes])
        off = np.log(modelled_ns * 1e-9) - large.log_s
        note = f"worst {_percent(off).max():.0f} %; not our prediction"
        yield _mean(f"{name}_{algorithm}", [off], None, note)
