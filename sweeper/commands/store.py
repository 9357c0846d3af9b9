"""The commands `watch` and `store`: follow a running sweep, compact and merge result files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.fs as pafs

from simulators.core.errors import UserError
from sweeper.commands.flags import add_words, flags, results_flags
from sweeper.report.answers import latest
from sweeper.report.browser.page import live
from sweeper.report.progress import shown
from sweeper.report.run_folder import earlier_run, runs
from sweeper.report.tables import write_text
from sweeper.report.watching import Watch, state
from sweeper.space.shipped_files import spaces
from sweeper.store.parquet import filesystem
from sweeper.store.store import alone
from sweeper.store.upkeep import compact, copy, definitions, quarantine_corrupt
from sweeper.terminal import printable


def watch(words: list[str]) -> int:
    """Show the progress of the last run of a space until the run ends."""
    parser = results_flags("watch")
    parser.add_argument("--page", metavar="FILE", help="write an HTML page that reloads itself")
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="S", help="seconds between updates (2)"
    )
    parser.add_argument("--once", action="store_true", help="print the progress once")
    parser.add_argument("--json", action="store_true", help="print the progress once, as JSON")
    chosen = parser.parse_args(words)
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
            over = (
                "stopped; the same command resumes the sweep"
                if stopped
                else "ended"
                if seen.ended
                else ""
            )
            seen.look()
            display.tick()
            if chosen.page:
                write_text(Path(chosen.page), live(seen, every_s, over))
            if over or chosen.once:
                break
            time.sleep(every_s)
    print(printable(seen.progress.line()))
    if stopped:
        print("The sweep was stopped or failed; the same command resumes the sweep.")
    return 0


def main(words: list[str]) -> int:
    """Compact the results of a space, or add results of other folders."""
    parser = flags("store")
    actions = parser.add_subparsers(dest="action", required=True)
    prune = actions.add_parser(
        "prune", help="compact files and remove damaged ones; keeps all rows"
    )
    add_words(prune, "name", spaces(), help="a space that has been run")
    merge = actions.add_parser("merge", help="add results of other folders; existing ones stay")
    merge.add_argument("sources", nargs="+", metavar="FOLDER", help="folders of results, or URLs")
    for action in (prune, merge):
        action.add_argument("--outputs", default="outputs", help="the folder or URL of results")
    chosen = parser.parse_args(words)
    if chosen.action == "prune":
        return _prune(chosen.name, chosen.outputs)
    return _merge(chosen.sources, chosen.outputs)


def _prune(name: str, outputs: str) -> int:
    home = latest(name, outputs).store
    total = quarantine_corrupt(home)
    for store in definitions(home):
        with alone(store):
            total += compact(store)
    print(f"{name}: compacted {total.parts:,} parts to {total.left:,}")
    if total.damaged:
        print(
            f"{len(total.damaged):,} damaged parts removed; run the sweep again to restore the rows"
        )
    return 0


def _merge(sources: Sequence[str], outputs: str) -> int:
    for source in (source.rstrip("/") for source in sources):
        names = _spaces(source)
        if not names:
            raise UserError(f"there are no results of any space in {source}")
        for name in names:
            copied, known = copy(source, outputs, name)
            _copy_runs(source, outputs, name)
            print(f"{name}: copied {copied:,} parts from {source}; {known:,} parts existed already")
    return 0


def _spaces(folder: str) -> list[str]:
    """Return the spaces with results in a folder."""
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
