"""A systolic array fills, streams and drains once per fold of the product.

One product of M x K by K x N on R x C elements. Samajdar et al., "SCALE-Sim" (2018): two operands
pin a tile to the array, the third streams through it. The last fold overlaps its last cycle with
nothing, hence the minus one.
"""

from __future__ import annotations

from collections.abc import Callable

from simulators.core.errors import UnknownNameError, UserError

DATAFLOWS = ("ws", "is", "os")


def systolic_cycles(
    m: int,
    n: int,
    k: int,
    *,
    rows: int,
    columns: int,
    dataflow: str,
    drain: bool = True,
    whole_tiles: bool = True,
) -> int:
    """Return the cycles of a product on a systolic array.

    Args:
        m: rows of the result.
        n: columns of the result.
        k: length of the inner products.
        rows: of the array.
        columns: of the array.
        dataflow: `ws`, `is` or `os`: the operand that stays.
        drain: an output-stationary array shifts its results out over its rows; SCALE-Sim's counts
            are those without.
        whole_tiles: a fold at the edge takes as long as a whole one; else only its own rows and
            columns are crossed.

    >>> systolic_cycles(128, 64, 256, rows=32, columns=32, dataflow="ws")
    3551
    """
    if dataflow not in DATAFLOWS:
        raise UnknownNameError("systolic dataflow", dataflow, DATAFLOWS)
    if min(m, n, k, rows, columns) < 1:
        raise UserError("sizes of a product and of a systolic array must be positive")
    if dataflow == "ws":
        return _folds(k, n, rows, columns, lambda r, c: 2 * r + c + m - 2, whole_tiles)
    if dataflow == "is":
        return _folds(k, m, rows, columns, lambda r, c: 2 * r + c + n - 2, whole_tiles)
    out = 2 if drain else 1
    return _folds(m, n, rows, columns, lambda r, c: out * r + c + k - 2, whole_tiles)


def _folds(
    down: int,
    across: int,
    rows: int,
    columns: int,
    fold_cycles: Callable[[int, int], int],
    whole_tiles: bool,
) -> int:
    """Return the cycles of all folds: whole ones, and those at the two edges and the corner."""
    if whole_tiles:
        return -(-down // rows) * -(-across // columns) * fold_cycles(rows, columns) - 1
    total = -1
    for r, times_r in ((rows, down // rows), (down % rows, 1)):
        for c, times_c in ((columns, across // columns), (across % columns, 1)):
            if r and c:
                total += times_r * times_c * fold_cycles(r, c)
    return total
