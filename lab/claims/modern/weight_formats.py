"""4-bit weights: how much faster one product is, and one sequence is decoded, than in fp16.

Products are those of Marlin's benchmark on an A10, read off a figure to 0.05: its clock free, and
locked at the base. Kernels that unpack the weights again for each row (AWQ's and bitsandbytes' of
2023) take as long as so many products of one row, and soon lose to fp16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.claims.lines import at_most, compared, error_line, percent_off
from lab.tables.forward_passes import TABLES, TINYCHAT, Case
from lab.tables.modern.weight_formats import (
    EXLLAMA,
    MATRIX,
    PRODUCTS,
    board_at,
    exllama_decodes,
    speed_ups,
)
from lab.tables.rows import Floats
from simulators.catalog.gpu import Gpu
from simulators.composition.replica import load_runtime
from simulators.core.contract import Check
from simulators.kernels.price import price
from simulators.workload.operators import Gemm

NEEDS = (PRODUCTS, TINYCHAT, EXLLAMA)

PRODUCT_LIMIT, DECODE_LIMIT = 10.0, 12.0

CLOCKS = {"boost": (), "base_locked": (32,)}
"""Rows that are not judged: at the base clock those where Marlin is 10 % off its own bound."""

UNFUSED = ("awq", "bitsandbytes")
LOSES_BY = 8
"""The rows of a product from which both lose: the last one, by the published figures, is 4 to 8."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors of products by clock, where unfused kernels lose, and errors of decodes."""
    for clock, aside in CLOCKS.items():
        yield from _products(reference, clock, aside)
    for table in TABLES:
        if table.path == TINYCHAT:
            runtime = load_runtime(table.runtime)
            cases = [case for case in table.cases(reference) if case.is_test]
            ours = [case.predicted_s(runtime) for case in cases]
            yield _decodes(f"weight formats, TinyChat, {table.name}, RTX 4090", cases, ours)
    cases = list(exllama_decodes(reference))
    ours = [case.predicted_s(case.replica.runtime) for case in cases]
    yield _decodes("weight formats, ExLlamaV2, 4 bits, RTX 4090", cases, ours)


def _decodes(name: str, cases: Sequence[Case], ours: Sequence[float]) -> Check:
    measured = np.array([case.measured_s for case in cases])
    groups = [case.replica.model.name for case in cases]
    return compared(name, np.array(ours), measured, groups, DECODE_LIMIT)


def _products(reference: Path, clock: str, aside: Sequence[int]) -> Iterator[Check]:
    board, published = board_at(clock), speed_ups(reference, clock)
    theirs = {rows: one for rows, one in published["marlin"].items() if rows not in aside}
    ours = ours_at(board, list(theirs))
    off = percent_off(ours, np.array(list(theirs.values())))
    each = ", ".join(
        f"{one:.2f} of {theirs[rows]:.2f} at {rows}"
        for rows, one in zip(theirs, ours.tolist(), strict=True)
    )
    title = f"weight formats, 4-bit product by Marlin, A10, {clock}"
    yield error_line(title, [off], PRODUCT_LIMIT, each)
    yield at_most(
        f"weight formats, rows from which unfused 4-bit kernels lose to fp16, A10, {clock}",
        float(loses_from(board)),
        float(LOSES_BY),
        len(UNFUSED),
        "of 1, 2, 4 ...; published: "
        + ", ".join(
            f"{kernel} {next(rows for rows, one in published[kernel].items() if one < 1.0)}"
            for kernel in UNFUSED
        ),
        unit="",
    )


def ours_at(board: Gpu, rows: Sequence[int]) -> Floats:
    """Return how much faster the product of so many rows is with 4-bit weights."""
    return product_s(board, rows, "") / product_s(board, rows, "int4")


def loses_from(board: Gpu) -> int:
    """Return the rows, as a power of two, from which as many products of one row take longer."""
    rows = 2 ** np.arange(10)
    again_s = rows * product_s(board, [1], "int4")
    return int(rows[np.argmax(again_s > product_s(board, rows.tolist(), ""))])


def product_s(board: Gpu, rows: Sequence[int], stored: str) -> Floats:
    """Return the seconds of the product by rows, with weights stored in a format or in fp16."""
    k, n = map(float, MATRIX)
    product = Gemm(name="product", m=np.array(rows, np.float64), n=n, k=k, weight_dtype=stored)
    return price(product, board).latency_s
