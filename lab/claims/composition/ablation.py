"""The gap between kernels and models, one effect at a time.

    python -m lab.claims.composition.ablation [--write]

Each row is a table of measured passes on one device in one phase. Its columns are mean errors in
percent: with everything, without one effect, and with kernels and messages alone. `--write` puts
the table into the room's page, between its two markers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.claims.composition.layers import RANGES
from lab.tables.forward_passes import TABLES, Case
from lab.tables.layers import BOARDS, LayerRows, layer_rows
from simulators.composition.replica import (
    EFFECTS,
    EVERYTHING,
    Effects,
    Runtime,
    effects_without,
    load_runtime,
)
from simulators.composition.throttling import slowdown
from simulators.core.calibration import reference_folder
from simulators.core.errors import UserError

PAGE = Path(__file__).parents[3] / "docs" / "composition.md"
BEGIN, END = "<!-- ablation: begin -->", "<!-- ablation: end -->"

PHASES = {
    "llama2_70b_token_time": "decode, eager",
    "llama2_70b_prompt_time": "prompt, eager",
    "decode_w4a16": "decode, eager, 4-bit weights",
    "decode_fp16": "decode, eager",
    "llama3_1_tpot_h100": "decode, graphs",
    "llama3_1_tpot_b200": "decode, graphs",
    "static_batch": "prompt and decode, graphs",
}

Errors = Callable[[Effects], float]
Parts = Sequence[tuple[LayerRows, NDArray[np.bool_]]]


@dataclass(frozen=True)
class Ablated:
    """Measurements of one device and phase, and their mean error under some effects."""

    device: str
    phase: str
    rows: int
    error: Errors


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", type=Path, default=reference_folder())
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    chosen = parser.parse_args()
    if chosen.reference is None:
        raise UserError("no reference folder; set SWEEPER_REFERENCE or give --reference")
    table = ablation_table([*_passes(chosen.reference), *_layers(chosen.reference)])
    print(table)
    if chosen.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def ablation_table(tables: Sequence[Ablated]) -> str:
    """Return the errors of all tables as Markdown.

    >>> print(ablation_table([Ablated("t4", "decode", 3, lambda e: 5.0 if e.launch else 50.0)]))
    | device | phase | rows | all | - launch | - fusion | - synchronisation | - clocks | - prompt | kernels alone |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | t4 | decode | 3 | 5.0 | 50.0 | = | = | = | = | 50.0 |
    """  # noqa: E501 - a table has wide rows
    without = {f"- {name}": effects_without(name) for name in EFFECTS}
    columns = {"all": EVERYTHING, **without, "kernels alone": effects_without("+".join(EFFECTS))}
    names = ["device", "phase", "rows", *columns]
    lines = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for one in tables:
        errors = [one.error(effects) for effects in columns.values()]
        cells = [f"{errors[0]:.1f}"]
        cells += ["=" if abs(e - errors[0]) < 0.05 else f"{e:.1f}" for e in errors[1:]]
        lines.append(f"| {one.device} | {one.phase} | {one.rows:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _passes(reference: Path) -> Iterator[Ablated]:
    """Yield the held-out passes of each table by device."""
    for table in TABLES:
        cases = [case for case in table.cases(reference) if case.is_test]
        runtime = load_runtime(table.runtime)
        for device in dict.fromkeys(case.replica.gpu.name for case in cases):
            mine = [case for case in cases if case.replica.gpu.name == device]

            def error(
                effects: Effects, mine: Sequence[Case] = mine, runtime: Runtime = runtime
            ) -> float:
                predicted = np.array([case.predicted_s(runtime, effects) for case in mine])
                measured = np.array([case.measured_s for case in mine])
                return 100.0 * float(np.mean(np.abs(predicted / measured - 1.0)))

            yield Ablated(device, PHASES[table.name], len(mine), error)


def _layers(reference: Path) -> Iterator[Ablated]:
    """Yield the sums of layers of held-out models, by range of tokens."""
    layers = [one for one in layer_rows(reference) if one.is_test]
    for name, (least, most, _) in RANGES.items():
        for board in BOARDS.values():
            mine = [one for one in layers if one.replica.gpu.name == board]
            parts = [(one, (one.tokens >= least) & (one.tokens <= most)) for one in mine]
            share = slowdown(mine[0].replica.gpu)

            def error(effects: Effects, parts: Parts = parts, share: float = share) -> float:
                off = [
                    np.abs(one.predicted_s(share * effects.clocks) / one.measured_s - 1.0)[here]
                    for one, here in parts
                ]
                return 100.0 * float(np.mean(np.concatenate(off)))

            rows = sum(int(here.sum()) for _, here in parts)
            yield Ablated(board, f"layer, {name}, unfused", rows, error)


if __name__ == "__main__":
    main()
