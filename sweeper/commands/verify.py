"""The command `verify`: repeat stored rows, or check the installation."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import numpy as np
import polars as pl

from simulators.core.columns import schema_of
from simulators.core.contract import WarmsUp, load_simulator
from simulators.core.errors import UserError
from simulators.core.folder import FOLDERS, SIMULATORS, Folder, read_toml
from sweeper.commands.flags import at_least, results_flags
from sweeper.engines.task import evaluate
from sweeper.query.pareto import rows_at, slices
from sweeper.query.scenarios import unpriced
from sweeper.report.answers import latest
from sweeper.report.run_folder import rows_of
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.space.points import Span
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import read_space
from sweeper.store.keys import SHOWN, define, keys
from sweeper.store.store import FAILURES


def main(words: list[str]) -> int:
    """Verify a sweep or the installation; return 1 on a difference."""
    parser = results_flags("verify", nargs="?")
    parser.add_argument(
        "--rows", type=at_least(1), default=200, help="number of rows (default 200)"
    )
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of the sample")
    chosen = parser.parse_args(words)
    if chosen.name is None:
        return _check_installation()
    last = latest(chosen.name, chosen.outputs)
    space = unpriced(last.space)
    now = define(space)
    then = last.store.definition
    if now.contents != then.contents or now.version != then.version:
        cause = "input files of these results have changed"
        if now.version != then.version:
            cause = (
                f"these results come from version {then.version} of '{now.simulator}', "
                f"not {now.version}"
            )
        raise UserError(
            f"{cause}, so rows may differ; run  python -m sweeper +space={chosen.name}  to "
            "simulate affected rows again"
        )
    stored = rows_of(last.store, space)
    sample, rows = _sampled(stored, chosen.rows, chosen.seed)
    if not rows:
        raise UserError(f"there are no rows of '{chosen.name}' to verify")
    index = space.index_of(sample)
    sample, index = sample.filter(index >= 0), index[index >= 0]
    again = pl.DataFrame(pl.from_arrow(evaluate(last.simulator, space.batch(index))))
    wrong = pl.Series(np.zeros(len(sample), bool))
    for name in [*schema_of(last.simulator.metrics).names, "status", "reason"]:
        mine, kept = (
            x[name].cast(pl.String) if name in ("status", "reason") else x[name]
            for x in (again, sample)
        )
        wrong |= mine.ne_missing(kept.cast(mine.dtype))
    if not wrong.any():
        print(f"{len(sample):,} of {rows:,} rows simulated again: bit-identical")
        return 0
    named = keys(last.store.definition, sample.filter(wrong)).str.head(SHOWN)
    print(f"{int(wrong.sum()):,} of {len(sample):,} rows differ: {', '.join(named[:10])}")
    return 1


def _sampled(stored: pl.LazyFrame, count: int, seed: int) -> tuple[pl.DataFrame, int]:
    """Return a random sample of the comparable rows, and the number of comparable rows."""
    done = ~pl.col("status").cast(pl.String).is_in(FAILURES)
    good = pl.concat(some.filter(done).select("__row").collect() for some in slices(stored))
    picked = np.random.default_rng(seed).choice(len(good), min(count, len(good)), replace=False)
    return rows_at(stored, good["__row"][picked]).drop("__row"), len(good)


def _check_installation() -> int:
    """Check catalog files, spaces and simulators, one line each; return 1 on a failure."""
    checks: list[tuple[str, Callable[[], str]]] = [
        (folder.plural, functools.partial(_facts, folder))
        for folder in FOLDERS.values()
        if folder.suffix == ".toml" and folder.names()
    ]
    checks += [(f"space {name}", functools.partial(_space, name)) for name in spaces()]
    checks += [(f"simulator {n}", functools.partial(_one_point, n)) for n in SIMULATORS.names()]
    failed = 0
    for what, check in checks:
        try:
            print(f"ok      {what}: {check()}")
        except UserError as error:
            failed += 1
            print(f"FAILED  {what}: {error}")
    verdict = f"{failed} checks failed" if failed else "all checks passed"
    print(f"python {sys.version.split()[0]}; {verdict}")
    return 1 if failed else 0


def _facts(folder: Folder) -> str:
    for name in folder.names():
        read_toml(folder.find(name))
    return f"{len(folder.names())} files"


def _space(name: str) -> str:
    return f"{_shipped(name).size:,} points"


def _one_point(name: str) -> str:
    simulator = load_simulator(name)
    if isinstance(simulator, WarmsUp):
        simulator.warm_up()
    for space_name in spaces():
        space = _shipped(space_name)
        if space.simulator == name:
            for lo in range(min(64, len(space))):
                where = Span(lo, lo + 1)
                kept = space.kept(where)
                if kept is None or kept.all():
                    row = evaluate(simulator, space.batch(where)).slice(0, 1).to_pylist()[0]
                    if row["status"] == "error":
                        raise UserError(f"the first point of {space_name}: {row['reason']}")
                    return f"the first point of {space_name} is {row['status']}"
    return "no shipped space uses this simulator"


@functools.cache
def _shipped(name: str) -> DesignSpace:
    return space_of(read_space(spaces()[name]))
