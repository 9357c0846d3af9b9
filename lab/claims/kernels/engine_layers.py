"""How far products and pointwise chains are from those timed in the layers of an engine.

Rows are of sizes nothing was fitted to: held-out ones where a board was fitted to such layers, all
of them where it was fitted to loops of single kernels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lab.claims.judged import judged, quantiles
from lab.claims.lines import at_most, error_line
from lab.fits.kernels.tensor_cores import IN_LAYERS
from lab.tables.kernels.engine_layers import (
    GPUS,
    read_chain_rows,
    read_head_norms,
    read_layer_products,
)
from lab.tables.rows import Bools
from simulators.core.contract import Check


def checks(reference: Path, rows: str) -> list[Check]:  # noqa: ARG001 - the same rows either way
    """Return the errors of products and of chains by board."""
    found = []
    for gpu in GPUS:
        for part in read_layer_products(reference, gpu):
            one = judged([part.where(part.held_out) if gpu in IN_LAYERS else part])
            name = f"{gpu} {part.framework} {part.dtype} product in layers MAPE"
            note = f"{quantiles(one.errors)}; {_held(one.inside)}"
            found.append(at_most(name, one.mape, None, one.errors.size, note))
        for part in read_chain_rows(reference, gpu):
            one = judged([part.where(part.held_out)])
            note = _held(one.inside[one.unseen])
            found.append(error_line(f"{gpu} {part.name} MAPE", [one.errors], note=note))
        for part in read_head_norms(reference, gpu):
            one = judged([part])
            found.append(
                error_line(f"{gpu} {part.name} MAPE", [one.errors], note=_held(one.inside))
            )
    return found


def _held(inside: Bools) -> str:
    return f"{100.0 * np.mean(inside):.0f} % within intervals"
