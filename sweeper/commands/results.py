"""The commands `verify`, `watch` and `store`: repeat, follow, compact and merge results."""

from __future__ import annotations

import functools
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.fs as pafs

from simulators.core.columns import schema_of
from simulators.core.contract import WarmsUp, load_simulator
from simulators.core.errors import UserError
from simulators.core.folder import FOLDERS, SIMULATORS, Folder, read_toml
from sweeper.commands.certify import verify_certificate
from sweeper.commands.flags import parse
from sweeper.engines.task import evaluate
from sweeper.query.pareto import numbered, picked, rows_at
from sweeper.query.scenarios import unpriced
from sweeper.report.answers import latest
from sweeper.report.browser.page import live
from sweeper.report.certificate import is_certificate
from sweeper.report.progress import Watch, shown, state
from sweeper.report.run_folder import earlier_run, manifest_of, rows_of, runs
from sweeper.report.tables import write_text
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.space.points import Span
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import read_space
from sweeper.store.keys import SHOWN, define, keys
from sweeper.store.parquet import filesystem
from sweeper.store.store import FAILURES, alone
from sweeper.store.upkeep import compact, copy, definitions, quarantine_corrupt
from sweeper.text import printable


def verify(words: list[str]) -> int:
    """Verify a sweep, a certificate or the installation; return 1 on a difference."""
    chosen = parse("verify", words)
    if chosen.name is None:
        return _check_installation()
    if is_certificate(Path(chosen.name)):
        return verify_certificate(
            Path(chosen.name), chosen.rows, chosen.seed, is_whole=chosen.whole
        )
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
    lost, strange = last.store.differences(manifest_of(last.folder))
    if lost or strange:
        print(
            f"{lost:,} rows are lost, and {strange:,} are repeated or in a part of other points; "
            f"run  python -m sweeper +space={chosen.name}  to simulate lost rows again"
        )
        return 1
    stored = rows_of(last.store, space)
    done = ~pl.col("status").cast(pl.String).is_in(FAILURES)
    rows = int(stored.filter(done).select(pl.len()).collect(engine="streaming").item())
    if not rows:
        raise UserError(f"there are no rows of '{chosen.name}' to verify")
    random = np.random.default_rng(chosen.seed)
    places = np.sort(random.choice(rows, min(chosen.rows, rows), replace=False))
    drawn = picked(numbered(stored).filter(done).select("__row"), places)["__row"]
    sample = rows_at(stored, drawn).drop("__row")
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


def _check_installation() -> int:
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
            kept = space.kept(Span(0, min(64, len(space))))
            first = 0 if kept is None else int(np.argmax(kept))
            row = evaluate(simulator, space.batch(Span(first, first + 1))).to_pylist()[0]
            if row["status"] == "error":
                raise UserError(f"the first point of {space_name}: {row['reason']}")
            return f"the first point of {space_name} is {row['status']}"
    return "no shipped space uses this simulator"


@functools.cache
def _shipped(name: str) -> DesignSpace:
    return space_of(read_space(spaces()[name]))


def watch(words: list[str]) -> int:
    """Show the progress of the last run of a space until the run ends."""
    chosen = parse("watch", words)
    every_s = max(chosen.every, 0.2)
    seen = Watch(latest(chosen.name, chosen.outputs))
    if chosen.json:
        seen.look()
        print(state(seen))
        return 0
    with shown(seen.progress) as display:
        display.say(f"watching {seen.answers.folder}")
        while True:
            stopped = seen.stopped  # read before `look`, so that the last parts are not missed
            over = "ended" if seen.ended else ""
            over = "stopped; the same command resumes the sweep" if stopped else over
            seen.look()
            display.tick()
            if chosen.page:
                write_text(chosen.page, live(seen, every_s, over))
            if over or chosen.once:
                break
            time.sleep(every_s)
    print(printable(seen.progress.line()))
    if stopped:
        print("The sweep was stopped or failed; the same command resumes the sweep.")
    return 0


def store(words: list[str]) -> int:
    """Compact the results of spaces, or add results of other folders."""
    chosen = parse("store", words)
    for source in chosen.sources:
        if chosen.action == "prune":
            _prune(source, chosen.outputs)
        else:
            _merge(source.rstrip("/"), chosen.outputs)
    return 0


def _prune(name: str, outputs: str) -> None:
    home = latest(name, outputs).store
    total = quarantine_corrupt(home)
    for store_ in definitions(home):
        with alone(store_):
            total += compact(store_)
    print(f"{name}: compacted {total.parts:,} parts to {total.left:,}")
    if total.damaged:
        print(
            f"{len(total.damaged):,} damaged parts removed; run the sweep again to restore the rows"
        )


def _merge(source: str, outputs: str) -> None:
    names = _spaces(source)
    if not names:
        raise UserError(f"there are no results of any space in {source}")
    for name in names:
        copied, known = copy(source, outputs, name)
        _copy_runs(source, outputs, name)
        print(f"{name}: copied {copied:,} parts from {source}; {known:,} parts existed already")


def _spaces(folder: str) -> list[str]:
    fs, path = filesystem(folder)
    there = fs.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    names = sorted(info.base_name for info in there if info.type == pafs.FileType.Directory)
    if not names:
        return []
    results = fs.get_file_info([f"{path}/{name}/results" for name in names])
    return [name for name, found in zip(names, results, strict=True) if found.type]


def _copy_runs(source: str, target: str, name: str) -> None:
    """Copy the runs of another folder as earlier runs; runs of results under a URL are skipped."""
    if "://" in source or "://" in target:
        return
    home = Path(target) / name / "runs"
    asked_here = {(run / "definition.json").read_bytes() for run in runs(target, name)}
    for run in runs(source, name):
        if (run / "definition.json").read_bytes() not in asked_here:
            shutil.copytree(run, earlier_run(home, run.name.partition("-")[2]))
