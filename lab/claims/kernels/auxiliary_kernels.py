"""How far auxiliary kernels are from measured ones whose shapes nothing was fitted to."""

from __future__ import annotations

from pathlib import Path

from lab.claims.judged import is_fitted_to, judged
from lab.claims.lines import absent, error_line, within
from lab.tables.kernels.auxiliary_kernels import GPUS, auxiliary_tables, read_auxiliary_rows
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.rows import Bools, Rows
from simulators.core.contract import Check


def checks(reference: Path, rows: str) -> list[Check]:
    """Return errors by board, framework and kernel, and how often intervals hold."""
    tables = auxiliary_tables(reference)
    if not tables:
        return [absent("kernels: auxiliary kernels", f"their tables in {MEASURED} are absent")]
    whole = rows == "all" and not is_fitted_to("auxiliary", reference, tables)
    found: list[Check] = []
    inside: list[Bools] = []
    for gpu in GPUS:
        by_kernel: dict[str, list[Rows]] = {}
        for part in read_auxiliary_rows(reference, gpu):
            mine = by_kernel.setdefault(f"{part.framework} {part.kernel}", [])
            mine.append(part if whole else part.where(part.held_out))
        for name, parts in by_kernel.items():
            one = judged(parts)
            if one.calibrated and one.measured_s.size:
                found.append(error_line(f"{gpu} {name} MAPE", [one.errors]))
                inside.append(one.inside if whole else one.inside[one.unseen])
    return [*found, *within("auxiliary kernel coverage", inside)]
