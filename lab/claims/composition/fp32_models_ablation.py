"""Errors of whole fp32 models with one effect left out, over cases nothing else is wrong with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.claims.composition._fp32_models import evidence_of
from lab.claims.composition.fp32_models import is_slow
from lab.claims.lines import at_most
from lab.fits.graphs import Fitted
from lab.tables.graphs import TABLE
from simulators.core.contract import Check
from simulators.graphs.timeline import Framework

NEEDS = (TABLE,)
LEFT_OUT: dict[str, dict[str, Any]] = {
    "with all effects": {},
    "without launches and waits of the host": {"launch_s": {}},
    "without waits of the host": {"synchronises": False},
    "without orders of backward products": {"gradient": {}},
}
"""By what is left out: the framework's numbers that say so."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield a line for each effect, then models fused by a compiler priced as if they were not."""
    evidence = evidence_of(reference)
    rows = [row for row in evidence.rows if not row.is_allocating and not is_slow(row.case)]
    for what, change in LEFT_OUT.items():
        errors: dict[str, list[float]] = {}
        for row in rows:
            where = f"{row.case.gpu.name} {'training' if row.case.is_training else 'inference'}"
            framework = replace(evidence.framework(row.case), **change)
            errors.setdefault(where, []).append(_error(row, framework))
        note = ", ".join(f"{name} {100 * np.mean(e):.1f}" for name, e in sorted(errors.items()))
        yield _line(what, [error for group in errors.values() for error in group], note)
    fused = [case for case in evidence.cases if case.is_fused]
    plain = [Fitted(c, replace(c, is_fused=False).price(reference)) for c in fused]
    apart = [_error(row, evidence.framework(row.case)) for row in plain]
    yield _line("fused by a compiler, without fusion", apart)


def _error(row: Fitted, framework: Framework) -> float:
    return abs(row.total_s(framework) / row.case.total_s - 1.0)


def _line(what: str, errors: list[float], note: str = "") -> Check:
    value = round(100.0 * float(np.mean(errors)), 2) if errors else np.nan
    return at_most(f"composition/graphs {what}", value, None, len(errors), note)
