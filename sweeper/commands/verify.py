"""Simulate a sample of a sweep's rows again and compare them bit by bit."""

from __future__ import annotations

import numpy as np
import polars as pl

from simulators.core.columns import schema_of
from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from sweeper.commands.flags import at_least, flags
from sweeper.commands.record import latest
from sweeper.keys import SHOWN, define, keys
from sweeper.work import evaluate

_ASKED_AGAIN = ("error", "timeout", "crash")


def main(words: list[str]) -> int:
    """Print how many rows are the same; exit code 1 when one is not."""
    parser = flags("verify", "simulate a sample of rows again and compare bit by bit")
    parser.add_argument("name", help="a space that has been run")
    parser.add_argument("--rows", type=at_least(1), default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="which")
    parser.add_argument("--outputs", default="outputs")
    chosen = parser.parse_args(words)
    last = latest(chosen.name, chosen.outputs)
    simulator = load_simulator(last.space.simulator)
    now = define(last.space)
    if now.contents != last.store.definition.contents or now.version != simulator.version:
        raise UserError(
            "files that these results were made with have changed since, so they would differ; "
            f"run  python -m sweeper +space={chosen.name}  to answer what they touch again"
        )
    rows = last.store.scan().filter(~pl.col("status").cast(pl.String).is_in(_ASKED_AGAIN)).collect()
    if rows.is_empty():
        raise UserError(f"there are no rows of '{chosen.name}' to verify")
    picked = np.random.default_rng(chosen.seed).permutation(len(rows))[: chosen.rows]
    sample = rows[np.sort(picked)]
    index = last.space.index_of(sample)
    sample, index = sample.filter(index >= 0), index[index >= 0]
    again = pl.DataFrame(pl.from_arrow(evaluate(simulator, last.space.batch(index))))
    columns = [*schema_of(simulator.metrics).names, "status", "reason"]
    wrong = pl.Series(np.zeros(len(sample), bool))
    for name in columns:
        mine, stored = (
            x[name].cast(pl.String) if name in ("status", "reason") else x[name]
            for x in (again, sample)
        )
        wrong |= mine.ne_missing(stored.cast(mine.dtype))
    if not wrong.any():
        print(f"{len(sample):,} of {len(rows):,} rows simulated again: equal to the bit")
        return 0
    named = keys(last.store.definition, sample.filter(wrong)).str.head(SHOWN)
    print(f"{int(wrong.sum()):,} of {len(sample):,} rows differ: {', '.join(named[:10])}")
    return 1
