"""Upkeep of results: `prune` makes few parts of many, `merge` one folder of several."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.fs as pafs

from simulators.core.errors import UserError
from sweeper.commands.flags import flags
from sweeper.report.answers import latest
from sweeper.report.run_folder import next_run, runs
from sweeper.store.lock import alone
from sweeper.store.seals import filesystem
from sweeper.store.upkeep import Kept, compact, copy, definitions


def prune(words: list[str]) -> int:
    """Compact the results of a space."""
    parser = flags("prune", "make few files of many, and take damaged ones away; no row is lost")
    parser.add_argument("name", help="a space that has been run")
    parser.add_argument("--outputs", default="outputs")
    chosen = parser.parse_args(words)
    total = Kept()
    for store in definitions(latest(chosen.name, chosen.outputs).store):
        with alone(store):
            total += compact(store)
    print(f"{chosen.name}: {total.parts:,} parts are {total.left:,} now")
    if total.damaged:
        print(f"{len(total.damaged):,} were damaged and are gone: the same sweep asks them again")
    return 0


def merge(words: list[str]) -> int:
    """Copy the results and runs of one folder into another."""
    parser = flags("merge", "add the results of other folders; what is there already stays")
    parser.add_argument("sources", nargs="+", metavar="FOLDER", help="folders of results, or URLs")
    parser.add_argument("--outputs", default="outputs", help="where they are added")
    chosen = parser.parse_args(words)
    for source in chosen.sources:
        source = source.rstrip("/")
        names = _spaces(source)
        if not names:
            raise UserError(f"there are no results of any space in {source}")
        for name in names:
            copied, known = copy(source, chosen.outputs, name)
            _copy_runs(source, chosen.outputs, name)
            print(f"{name}: {copied:,} parts from {source}, {known:,} were there already")
    return 0


def _spaces(folder: str) -> list[str]:
    """Return the spaces that a folder has results of."""
    fs, path = filesystem(folder)
    there = fs.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    names = sorted(info.base_name for info in there if info.type == pafs.FileType.Directory)
    if not names:
        return []
    results = fs.get_file_info([f"{path}/{name}/results" for name in names])
    return [name for name, found in zip(names, results, strict=True) if found.type]


def _copy_runs(source: str, target: str, name: str) -> None:
    """Add what was asked there, so that queries find it: as earlier runs than those that are here.

    Of results under a URL it is kept where it was asked.
    """
    if "://" in source or "://" in target:
        return
    home = Path(target) / name / "runs"
    asked_here = {(run / "definition.json").read_bytes() for run in runs(target, name)}
    for run in runs(source, name):
        if (run / "definition.json").read_bytes() not in asked_here:
            shutil.copytree(run, next_run(home, run.name.partition("-")[2]))
