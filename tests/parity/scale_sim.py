"""Cycles of a product on a systolic array, as SCALE-Sim counts them.

Samajdar et al., "SCALE-Sim" (2018): two operands pin a tile to the array, the third streams through
it. A fold at the edge takes as long as a whole one, results leave an output-stationary array in no
time, and the last fold overlaps its last cycle with nothing, hence the minus one.
"""

from __future__ import annotations


def systolic_cycles(m: int, n: int, k: int, *, rows: int, columns: int, dataflow: str) -> int:
    """Return the cycles of M x K by K x N on `rows` x `columns` elements.

    `ws`, `is` and `os` say which operand stays.

    >>> systolic_cycles(128, 64, 256, rows=32, columns=32, dataflow="ws")
    3551
    """
    down, across, streamed, fill = {
        "ws": (k, n, m, 2),
        "is": (k, m, n, 2),
        "os": (m, n, k, 1),
    }[dataflow]
    folds = -(-down // rows) * -(-across // columns)
    return folds * (fill * rows + columns + streamed - 2) - 1
