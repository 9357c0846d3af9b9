"""Forward passes and layers of language models beside measured ones, and their intervals."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.predictions import columns, together
from lab.fits.intervals.pass_intervals import configurations, shares
from lab.tables.forward_passes import TABLES
from lab.tables.layers import GPUS, LayerRows, layer_rows
from simulators.composition.replica import EFFECTS, EVERYTHING, effects_without, load_runtime
from simulators.composition.throttling import slowdown
from simulators.core.jit import Floats

RANGES = {"decode": (1, 128), "small prompts": (129, 512), "prompts": (513, 1 << 20)}
"""Fewest and most tokens of a layer."""


def passes(reference: Path) -> pl.DataFrame:
    """Return predicted and measured seconds of whole passes, by table."""
    return together(
        columns(
            predicted=np.array([case.predicted_s(runtime) for case in cases]),
            measured=np.array([case.measured_s for case in cases]),
            held_out=np.array([case.is_test for case in cases]),
            label=[case.group for case in cases],
            table=table.name,
        )
        for table in TABLES
        for runtime in [load_runtime(table.runtime)]
        for cases in [list(table.cases(reference))]
    )


def layers(reference: Path) -> pl.DataFrame:
    """Return sums of one layer's operators beside measured layers, by range of tokens."""
    return together(
        _layer_rows(one, one.predicted_s(slowdown(one.replica.gpu)), range=name).filter(
            pl.col("tokens").is_between(low, high)
        )
        for name, (low, high) in RANGES.items()
        for gpu in GPUS.values()
        for one in layer_rows(reference)
        if one.replica.gpu.name == gpu
    )


def _layer_rows(one: LayerRows, predicted_s: Floats, **labels: object) -> pl.DataFrame:
    return columns(
        predicted=predicted_s,
        measured=one.measured_s,
        tokens=one.tokens,
        gpu=one.replica.gpu.name,
        held_out=one.is_test,
        label=f"{one.model} tp{one.replica.cut.tp}",
        **labels,
    )


def intervals(reference: Path) -> pl.DataFrame:
    """Return configurations with intervals whose unexplained share is of all other GPUs."""
    known = configurations(reference)
    rows = []
    for gpu in dict.fromkeys(one.gpu for one in known):
        share = shares([one for one in known if one.gpu != gpu])
        for one in known:
            if one.gpu == gpu and one.case.is_test and not isnan(share[one.is_known]):
                lo, hi = one.interval_s(share[one.is_known])
                cells = {"predicted": one.predicted_s, "measured": one.measured_s}
                rows.append({"gpu": gpu, "lo": lo, "hi": hi, **cells})
    return pl.DataFrame(rows)


def ablation(reference: Path) -> pl.DataFrame:
    """Return held-out passes and layers with one effect left out at a time, or all of them."""
    return together(_ablated(reference))


def _ablated(reference: Path) -> Iterator[pl.DataFrame]:
    left_out = {"nothing": EVERYTHING, **{name: effects_without(name) for name in EFFECTS}}
    left_out["everything"] = effects_without("+".join(EFFECTS))
    for name, effects in left_out.items():
        for table in TABLES:
            runtime = load_runtime(table.runtime)
            cases = [case for case in table.cases(reference) if case.is_test]
            yield columns(
                predicted=np.array([case.predicted_s(runtime, effects) for case in cases]),
                measured=np.array([case.measured_s for case in cases]),
                gpu=[case.replica.gpu.name for case in cases],
                phase=table.name,
                without=name,
            )
        for one in layer_rows(reference):
            if one.is_test:
                clocks = slowdown(one.replica.gpu) * effects.clocks
                phase = np.select(
                    [one.tokens <= high for _, high in RANGES.values()],
                    [*map("layer, {}".format, RANGES)],
                )
                yield _layer_rows(one, one.predicted_s(clocks), phase=phase, without=name)
