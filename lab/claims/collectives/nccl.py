"""How far collectives are from the reference simulator and from measured libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.collectives import (
    NCCL,
    NVLINK,
    Measured,
    errors_between,
    growth_coverage,
    growth_errors,
    held_out_coverage,
    held_out_errors,
    read_table,
)
from lab.fits.methods.kin_regression import learn
from lab.parity.astra_sim import ASTRA_SIM, GIB, Runs, analytic_ns, event_ns, read_runs
from simulators.collectives.graph import graph_of, timeline
from simulators.collectives.layers import data_parallel_step, read_layers
from simulators.collectives.measured import NETWORKS, measured_time
from simulators.collectives.plan import Plan, op_of, plan_of
from simulators.collectives.single import simulate
from simulators.collectives.world import FINISH_NS
from simulators.core.calibration import provenance_of, read_calibration, sha256_of
from simulators.core.contract import Check

Floats = NDArray[np.float64]

PUBLISHED_NS = {
    "all_reduce": 57_426, "all_gather": 44_058, "reduce_scatter": 28_950, "all_to_all": 114_000,
}  # fmt: skip
"""ASTRA-sim, HGX-H100 configuration, 8 NPUs, 1 MiB (an all-gather's is a shard): cycles."""
RESNET50_NS = {(2, 741.34): 574_289, (4, 741.34): 1_454_270, (8, 400.0): 3_307_886}
"""Data-parallel ResNet-50, by NPUs and GB/s: the published totals, which mix two bandwidths."""
HGX_LATENCY_S, HGX_MEMORY = 936.25e-9, 3.35e12
LAYERS = "collectives/resnet50_layers.csv"
COLLECTIVE_NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
KIB, MIB = 2.0**10, 2.0**20
HANDFUL = 5
"""Sizes per curve that a new interconnect is fitted from."""


def checks(reference: Path, rows: str) -> list[Check]:
    """Return one line for each figure this room is held to.

    Args:
        reference: the folder of measured tables.
        rows: `test` for errors on rows held out of the fits, `all` for the shipped curves on all.
    """
    return [
        *_published(),
        *_resnet50(reference),
        *_parity(reference),
        *_nccl(reference, rows),
    ]


def _hgx(ranks: int, gbytes_per_s: float) -> Plan:
    return plan_of(f"switch:{ranks}", "ring", gbytes_per_s * GIB, HGX_LATENCY_S)


def _event_ns(plan: Plan, op: int, size: int) -> int:
    request = np.array([0, op, size, 4, 2, 1, 10, 0], np.int64)
    return int(simulate(plan, request, HGX_MEMORY)[FINISH_NS])


def _published() -> list[Check]:
    found = []
    for collective, published in PUBLISHED_NS.items():
        taken = _event_ns(_hgx(8, 400.0), op_of(collective), 1 << 20)
        name = f"collectives/published_{collective}"
        found.append(
            Check(name, taken, unit="cycles", limit=published, ok=taken == published, rows=1)
        )
    return found


def _resnet50(reference: Path) -> list[Check]:
    if not (reference / LAYERS).is_file():
        return [Check("collectives/resnet50", None, note=f"absent: {LAYERS}")]
    layers = read_layers(reference / LAYERS)
    found = []
    for (ranks, rate), published in (RESNET50_NS | {(2, 400.0): 0, (4, 400.0): 0}).items():
        plan = _hgx(ranks, rate)
        step = timeline(
            graph_of(
                data_parallel_step(layers, lambda size, plan=plan: _event_ns(plan, 0, size))  # type: ignore[misc]
            )
        )
        total = step.comm_total_ns
        found.append(
            Check(
                f"collectives/resnet50_{ranks}x{rate:g}",
                total,
                unit="cycles",
                limit=published or None,
                ok=total == published if published else None,
                rows=len(layers),
                note=f"a sum; exposed {step.comm_exposed_ns:,}, compute {step.compute_total_ns:,}",
            )
        )
    return found


def _parity(reference: Path) -> list[Check]:
    if not (reference / ASTRA_SIM).is_file():
        return [Check("collectives/parity", None, unit="%", note=f"absent: {ASTRA_SIM}")]
    runs = read_runs(reference)
    plain = np.array(["ring" in set(a.removeprefix("flat:").split(",")) for a in runs.algorithm])
    events = event_ns(runs)
    unaware, aware = ~runs.is_aware, runs.is_aware
    return [
        *_shares("analytic", analytic_ns(runs), runs, unaware, exact=99.0, within=1.5),
        *_shares("event_ring", events, runs, aware & plain, exact=97.0, within=None),
        *_shares("event_others", events, runs, aware & ~plain, exact=None, within=2.0),
    ]


def _shares(
    name: str,
    ours: NDArray[np.int64],
    runs: Runs,
    where: NDArray[np.bool_],
    *,
    exact: float | None,
    within: float | None,
) -> list[Check]:
    count = int(where.sum())
    if not count:
        return [Check(f"collectives/{name}", None, unit="%", note="no such runs")]
    ratio = np.abs(ours[where] / runs.finish_ns[where] - 1.0)
    share, worst = 100.0 * float(np.mean(ratio == 0.0)), 100.0 * float(ratio.max())
    ok_share = None if exact is None else share >= exact
    ok_worst = None if within is None else worst <= within
    return [
        Check(f"collectives/{name}_exact", round(share, 3), "%", exact, ok_share, count),
        Check(f"collectives/{name}_worst", round(worst, 3), "%", within, ok_worst, count),
    ]


def _nccl(reference: Path, rows: str) -> list[Check]:
    if not (reference / NCCL).is_file():
        return [Check("collectives/nccl", None, unit="%", note=f"absent: {NCCL}")]
    table = read_table(reference / NCCL)
    is_fitted = sha256_of(reference / NCCL) in _fitted_hashes()
    held_out = is_fitted and rows != "all"
    found = [
        Check(f"collectives/{gpu}", None, unit="%", note="no network of this name is described")
        for gpu in sorted(table)
        if not NETWORKS.has(gpu)
    ]
    table = {gpu: libraries for gpu, libraries in sorted(table.items()) if NETWORKS.has(gpu)}
    for gpu, libraries in table.items():
        for library, measured in sorted(libraries.items()):
            found.append(_sizes(gpu, library, measured, held_out=held_out))
    found.append(_all_nccl(table, held_out=held_out))
    found += [_growth(table, collective) for collective in COLLECTIVE_NAMES]
    found.append(_overall_growth(table))
    found += [_interpolated_ranks(table), *_coverage(table), _handful(table)]
    found += _hgx_default(table, held_out=held_out)
    return found


def _fitted_hashes() -> set[str]:
    files = [NETWORKS.find(name) for name in NETWORKS.names()]
    return {h for f in files for h in provenance_of(read_calibration(f), f).sha256}


def _errors(
    gpu: str, library: str, measured: Measured, *, held_out: bool
) -> tuple[Floats, NDArray[np.int64], Floats, Floats]:
    """Return log errors with their rows' curve, octave and band."""
    if held_out:
        held = held_out_errors(measured)
        return held.log_error, held.curve, held.octave, np.full(held.curve.size, np.nan)
    errors: list[Floats] = []
    owners: list[NDArray[np.int64]] = []
    octaves: list[Floats] = []
    bands: list[Floats] = []
    for code, (collective, dtype, ranks) in enumerate(measured.keys):
        mine = measured.rows_code == code
        size = np.exp2(measured.rows.octave[mine])
        timed = measured_time(
            gpu=gpu, library=library, collective=collective, dtype=dtype, ranks=ranks,
            size_bytes=size,
        )  # fmt: skip
        errors.append(np.log(timed.time_s) - measured.rows.log_s[mine])
        bands.append(np.log(timed.hi_s / timed.time_s))
        octaves.append(measured.rows.octave[mine])
        owners.append(np.full(size.size, code))
    together = np.concatenate(errors), np.concatenate(owners)
    return *together, np.concatenate(octaves), np.concatenate(bands)


def _mape(errors: Floats) -> float:
    return round(100.0 * float(np.mean(np.abs(np.expm1(errors)))), 2)


def _sizes(gpu: str, library: str, measured: Measured, *, held_out: bool) -> Check:
    errors, owners, _, bands = _errors(gpu, library, measured, held_out=held_out)
    name = f"collectives/{library}_{gpu}"
    if not errors.size:
        return Check(name, None, unit="%", note="no rows")
    by: list[str] = []
    for collective in sorted({k[0] for k in measured.keys}):
        codes = [i for i, k in enumerate(measured.keys) if k[0] == collective]
        part = errors[np.isin(owners, codes)]
        if part.size:
            by.append(f"{collective} {_mape(part):.1f}")
    if not held_out:
        by.append(f"covered {100 * np.mean(np.abs(errors) <= bands):.0f} %")
    limit = 7.0 if library == "nccl" else None
    value = _mape(errors)
    return Check(
        name, value, "%", limit, None if limit is None else value <= limit, errors.size,
        ("sizes held out: " if held_out else "shipped curves: ") + ", ".join(by),
    )  # fmt: skip


def _all_nccl(table: dict[str, dict[str, Measured]], *, held_out: bool) -> Check:
    parts = [
        _errors(gpu, "nccl", libraries["nccl"], held_out=held_out)
        for gpu, libraries in table.items()
        if "nccl" in libraries
    ]
    if not parts:
        return Check("collectives/nccl", None, unit="%", note="no rows")
    errors = np.concatenate([part[0] for part in parts])
    value = _mape(errors)
    note = f"all GPUs, median {100 * float(np.median(np.abs(np.expm1(errors)))):.1f}"
    return Check("collectives/nccl", value, "%", 7.0, value <= 7.0, errors.size, note)


def _growth(table: dict[str, dict[str, Measured]], collective: str) -> Check:
    by_gpu = growth_errors(table, NVLINK, collective)
    name = f"collectives/ranks_8_from_4_{collective}"
    if not by_gpu:
        return Check(name, None, unit="%", note="no rows")
    errors = np.concatenate(list(by_gpu.values()))
    note = ", ".join(f"{gpu} {_mape(part):.1f}" for gpu, part in by_gpu.items())
    value = _mape(errors)
    return Check(name, value, "%", 15.0, value <= 15.0, errors.size, note)


def _overall_growth(table: dict[str, dict[str, Measured]]) -> Check:
    parts = [e for c in COLLECTIVE_NAMES for e in growth_errors(table, NVLINK, c).values()]
    name = "collectives/ranks_8_from_4"
    if not parts:
        return Check(name, None, unit="%", note="no rows")
    errors = np.concatenate(parts)
    value = _mape(errors)
    note = "NVLink GPUs; growth learnt from the other GPUs"
    return Check(name, value, "%", 15.0, value <= 15.0, errors.size, note)


def _interpolated_ranks(table: dict[str, dict[str, Measured]]) -> Check:
    parts = [
        errors_between(libraries["nccl"], key)
        for gpu, libraries in table.items()
        if gpu in NVLINK and "nccl" in libraries
        for key in libraries["nccl"].keys
        if key[2] == 4
    ]
    errors = [p for p in parts if p.size]
    name = "collectives/ranks_4_from_2_and_8"
    if not errors:
        return Check(name, None, unit="%", note="no rows")
    together = np.concatenate(errors)
    value = _mape(together)
    return Check(name, value, "%", 15.0, value <= 15.0, together.size, "NVLink GPUs")


def _coverage(table: dict[str, dict[str, Measured]]) -> list[Check]:
    """Count rows inside intervals that were fitted without them: sizes, then rank counts."""
    sizes = [
        held_out_coverage(libraries["nccl"]) for libraries in table.values() if "nccl" in libraries
    ]
    ranks = [growth_coverage(table, NVLINK, collective) for collective in COLLECTIVE_NAMES]
    found = []
    for name, parts in (("sizes", sizes), ("ranks_8_from_4", ranks)):
        inside = np.concatenate(parts) if parts else np.zeros(0, bool)
        if not inside.size:
            found.append(Check(f"collectives/covered_{name}", None, unit="%", note="no rows"))
            continue
        share = round(100.0 * float(np.mean(inside)), 1)
        note = "inside 90 % intervals fitted without them, at least"
        found.append(
            Check(f"collectives/covered_{name}", share, "%", 90.0, share >= 90.0, inside.size, note)
        )
    return found


def _hgx_default(table: dict[str, dict[str, Measured]], *, held_out: bool) -> list[Check]:
    """Compare the default, the peer's shipped ring and halving-doubling on eight H100."""
    measured = table.get("h100_sxm", {}).get("nccl")
    name = "collectives/hgx_h100_default"
    key = ("all_reduce", "fp16", 8)
    if measured is None or key not in measured.keys:
        return [Check(name, None, unit="%", note="no rows")]
    code = measured.keys.index(key)
    errors, owners, octaves, _ = _errors("h100_sxm", "nccl", measured, held_out=held_out)
    inside = (owners == code) & (octaves >= np.log2(64 * KIB)) & (octaves <= np.log2(512 * MIB))
    worst = 100.0 * float(np.max(np.abs(np.expm1(errors[inside])), initial=0.0))
    value = _mape(errors[inside])
    found = [
        Check(name, value, "%", 10.0, value <= 10.0, int(inside.sum()),
              f"64 KiB to 512 MiB, worst {worst:.1f} %")
    ]  # fmt: skip
    mine = (measured.rows_code == code) & (measured.rows.octave >= 16)
    for algorithm in ("ring", "halving_doubling"):
        modelled = _model_s(algorithm, np.exp2(measured.rows.octave[mine]))
        ratio = np.log(modelled) - measured.rows.log_s[mine]
        note = f"worst {100 * float(np.max(np.abs(np.expm1(ratio)))):.0f} %; not our prediction"
        found.append(
            Check(f"{name}_{algorithm}", _mape(ratio), "%", rows=int(mine.sum()), note=note)
        )
    return found


def _model_s(algorithm: str, size_bytes: Floats) -> Floats:
    plan, op = plan_of("hgx_h100", algorithm), op_of("all_reduce")
    return np.array([_event_ns(plan, op, round(size)) for size in size_bytes.tolist()]) * 1e-9


def _handful(table: dict[str, dict[str, Measured]]) -> Check:
    """Fit each NVLink GPU anew from a few sizes of every curve, and predict the others."""
    parts = []
    for gpu in NVLINK:
        measured = table.get(gpu, {}).get("nccl")
        if measured is None:
            continue
        rows, seen = measured.rows, np.zeros(measured.rows.octave.size, bool)
        for code in range(len(measured.keys)):
            mine = np.flatnonzero(measured.rows_code == code)
            seen[mine[np.round(np.linspace(0, mine.size - 1, HANDFUL)).astype(int)]] = True
        guess = learn(rows.take(seen)).log_s(rows.kin[~seen], rows.octave[~seen])
        parts.append(guess - rows.log_s[~seen])
    if not parts:
        return Check("collectives/new_interconnect", None, unit="%", note="no rows")
    errors = np.concatenate(parts)
    note = f"each NVLink GPU from {HANDFUL} sizes per curve"
    return Check("collectives/new_interconnect", _mape(errors), "%", rows=errors.size, note=note)
