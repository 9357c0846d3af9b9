"""Models of Qualcomm AI Hub on a chip that is left out: ten of them measured, or none.

All programs of ten models are measured (a model is several: by runtime and precision), those of the
other models are judged. Without any, the level of a chip is that of the others by the rate of their
memories, which is what data sheets state of most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lab.claims.lines import at_least, at_most, rank_correlation, within
from lab.fits.methods.few_shot import Prior, adapt
from lab.fits.methods.programs import learn_programs, one_hot
from lab.tables.edge.programs import AI_HUB, Matrix, ai_hub
from lab.tables.rows import Floats
from simulators.core.contract import Check
from simulators.core.jit import Ints
from simulators.edge.device import Weights

NEEDS = (AI_HUB,)
MODELS, DRAWS = 10, 4
ERROR, RANKS = 18.0, 0.97

MEMORY_BYTES_PER_S = MappingProxyType(
    {
        "Samsung Galaxy S24": 76.8e9,  # Snapdragon 8 Gen 3: LPDDR5X at 4,800 MHz, 64 bits
        "Samsung Galaxy S25": 84.8e9,  # Snapdragon 8 Elite: LPDDR5X at 5,300 MHz
        "Snapdragon 8 Elite Gen 5 QRD": 84.8e9,  # LPDDR5X at 5,300 MHz
        "QCS8550 (Proxy)": 67.2e9,  # Snapdragon 8 Gen 2: LPDDR5X at 4,200 MHz
        "Snapdragon X Elite CRD": 135.0e9,  # LPDDR5X at 8,448 MT/s, 128 bits
        "Dragonwing RB3 Gen 2 Vision Kit": 25.6e9,  # QCS6490: LPDDR5 at 3,200 MHz, 32 bits
        "SA8295P ADP": 68.3e9,  # LPDDR4X at 2,133 MHz, 128 bits
    }
)
"""Of product briefs (Qualcomm); the other chips' state no width."""

Row = tuple[Floats, Floats, Floats, Floats]


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors and ranks of chips left out."""
    table = ai_hub(reference)
    few: dict[str, list[Row]] = {}
    none: dict[str, Row] = {}
    for number, chip in enumerate(table.chips):
        prior = learn_programs(
            np.delete(table.log, number, 0), np.ones(len(table.chips) - 1), _labels(table)
        )
        known = _known(table, number)
        few[chip] = [_few_shot(table, number, prior, known, seed) for seed in range(DRAWS)]
        if chip in MEMORY_BYTES_PER_S:
            none[chip] = _zero_shot(table, number, known)
    yield from _lines(f"models on chips, {MODELS} measured", list(few.values()), ERROR, RANKS)
    inside = [
        (low <= seen) & (seen <= high) for rows in few.values() for _, seen, low, high in rows
    ]
    yield from within(f"models on chips, {MODELS} measured: coverage", inside, "few-shot")
    yield from _lines(
        "models on chips, data sheet alone", [[row] for row in none.values()], None, None
    )
    for chip, rows in few.items():
        yield at_most(f"{chip}, {MODELS} measured: MAPE", _error(rows), None, rows[0][0].size)


def _lines(
    name: str, chips: Sequence[Sequence[Row]], limit: float | None, least: float | None
) -> Iterator[Check]:
    """Yield the mean over chips of their errors and rank correlations."""
    errors = [_error(rows) for rows in chips]
    ranks = [
        float(np.mean([rank_correlation(said, seen) for said, seen, _, _ in one])) for one in chips
    ]
    note = f"mean of {len(chips)} chips, each left out; worst {max(errors):.0f}"
    rows = sum(one[0][0].size for one in chips)
    yield at_most(f"{name}: MAPE", float(np.mean(errors)), limit, rows, note)
    yield at_least(f"{name}: Spearman", float(np.mean(ranks)), least, rows, "", unit="")


def _error(rows: Sequence[Row]) -> float:
    return 100.0 * float(np.mean([np.mean(np.abs(said / seen - 1.0)) for said, seen, _, _ in rows]))


def _labels(table: Matrix) -> list[list[str]]:
    """Return what programs share: their runtime and precision, each of them, their model."""
    both = [f"{runtime} {precision}" for _, _, precision, runtime in table.programs]
    model, _, precision, runtime = (list(names) for names in zip(*table.programs, strict=True))
    return [both, runtime, precision, model]


def _known(table: Matrix, chip: int) -> Ints:
    """Return the programs of a chip that were measured on another, too."""
    others = np.delete(table.log, chip, 0)
    return np.flatnonzero(~np.isnan(table.log[chip]) & ~np.isnan(others).all(axis=0))


def _few_shot(table: Matrix, chip: int, prior: Prior, known: Ints, seed: int) -> Row:
    """Return predicted and measured seconds of the models that were not drawn, and intervals."""
    models = np.array([program[0] for program in table.programs])
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    drawn = generator.choice(np.unique(models[known]), MODELS, replace=False)
    samples = known[np.isin(models[known], drawn)]
    rest = np.setdiff1d(known, samples)
    weights: Weights = adapt(prior, _features(table, samples), np.exp(table.log[chip, samples]))
    said, low, high = weights.seconds(_features(table, rest))
    return said, np.exp(table.log[chip, rest]), low, high


def _features(table: Matrix, programs: Ints) -> Floats:
    return one_hot(programs.tolist(), len(table.programs))


def _zero_shot(table: Matrix, chip: int, known: Ints) -> Row:
    """Return seconds from other chips' by a power of their memories' rates, fitted to those."""
    names = [c for c in MEMORY_BYTES_PER_S if c != table.chips[chip]]
    others = table.log[[table.chips.index(name) for name in names]]
    rates = np.log([MEMORY_BYTES_PER_S[name] for name in names])
    mine = np.log(MEMORY_BYTES_PER_S[table.chips[chip]])
    centred = others - np.nanmean(others, axis=0)
    level = np.nanmean(centred, axis=1)
    power = float(np.polyfit(rates, level, 1)[0])
    seen = ~np.isnan(others)
    shift = power * (mine - (seen * rates[:, None]).sum(axis=0) / np.maximum(seen.sum(axis=0), 1))
    kept = known[seen[:, known].any(axis=0)]
    said = np.exp(np.nanmean(others[:, kept], axis=0) + shift[kept])
    return said, np.exp(table.log[chip, kept]), said, said
