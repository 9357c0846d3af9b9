"""The gap between kernels and models, one effect at a time: mean errors in percent.

    python -m lab.claims.composition.ablation [--write]

Each row is a table of measured passes on one device in one phase; columns are errors with
everything, without one effect, and with kernels and messages alone. `--write` puts the table into
the room's page, between its two markers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

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
from simulators.core.jit import Floats

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

Ratios = Callable[[Effects], Floats]
"""Predicted over measured times under some effects."""


def main() -> None:
    """Print the table, or write it into the page."""
    reference = reference_folder()
    if reference is None:
        raise UserError("no reference folder; set SWEEPER_REFERENCE")
    table = ablation_table([*_passes(reference), *_layers(reference)])
    print(table)
    if "--write" in sys.argv[1:]:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def ablation_table(rows: Iterable[tuple[str, str, Ratios]]) -> str:
    """Return the errors of all devices and phases as Markdown.

    >>> print(ablation_table([("t4", "decode", lambda e: np.array([1.05 if e.launch else 1.5]))]))
    | device | phase | rows | all | - launch | - fusion | - synchronisation | - clocks | - prompt | kernels alone |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | t4 | decode | 1 | 5.0 | 50.0 | = | = | = | = | 50.0 |
    """  # noqa: E501 - a table has wide rows
    columns = {"all": EVERYTHING, **{f"- {name}": effects_without(name) for name in EFFECTS}}
    columns["kernels alone"] = effects_without("+".join(EFFECTS))
    names = ["device", "phase", "rows", *columns]
    lines = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for device, phase, ratios in rows:
        off = [np.abs(ratios(effects) - 1.0) for effects in columns.values()]
        whole, *errors = (100.0 * float(np.mean(one)) for one in off)
        cells = ["=" if abs(e - whole) < 0.05 else f"{e:.1f}" for e in errors]
        lines.append(
            f"| {' | '.join([device, phase, f'{off[0].size:,}', f'{whole:.1f}', *cells])} |"
        )
    return "\n".join(lines)


def _passes(reference: Path) -> Iterator[tuple[str, str, Ratios]]:
    """Yield the held-out passes of each table by device."""
    for table in TABLES:
        cases = [case for case in table.cases(reference) if case.is_test]
        runtime = load_runtime(table.runtime)
        for device in dict.fromkeys(case.replica.gpu.name for case in cases):
            mine = [case for case in cases if case.replica.gpu.name == device]
            yield device, PHASES[table.name], partial(_pass_ratios, mine, runtime)


def _pass_ratios(cases: Sequence[Case], runtime: Runtime, effects: Effects) -> Floats:
    return np.array([case.predicted_s(runtime, effects) / case.measured_s for case in cases])


def _layers(reference: Path) -> Iterator[tuple[str, str, Ratios]]:
    """Yield the sums of layers of held-out models, by range of tokens."""
    layers = [one for one in layer_rows(reference) if one.is_test]
    for name, (least, most, _) in RANGES.items():
        for board in BOARDS.values():
            mine = [one for one in layers if one.replica.gpu.name == board]
            ratios = partial(_layer_ratios, mine, least, most)
            yield board, f"layer, {name}, unfused", ratios


def _layer_ratios(layers: Sequence[LayerRows], least: int, most: int, effects: Effects) -> Floats:
    share = slowdown(layers[0].replica.gpu) * effects.clocks
    parts = [
        (one.predicted_s(share) / one.measured_s)[(least <= one.tokens) & (one.tokens <= most)]
        for one in layers
    ]
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
