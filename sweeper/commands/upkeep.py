"""Results as files: `watch` sees them grow, `prune` makes few of many, `merge` joins folders."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyarrow.fs as pafs

from simulators.core.errors import UserError
from sweeper.commands.flags import flags, results_flags
from sweeper.report.answers import latest
from sweeper.report.browser.live import live
from sweeper.report.progress import shown
from sweeper.report.run_folder import earlier_run, runs
from sweeper.report.tables import write_text
from sweeper.report.watching import Watch, state
from sweeper.store.checksums import filesystem
from sweeper.store.lock import alone
from sweeper.store.upkeep import compact, copy, definitions, quarantine_corrupt
from sweeper.terminal import printable


def watch(words: list[str]) -> int:
    """Show how far the last run of a space is until it has ended."""
    parser = flags("watch", "how far a sweep is that runs elsewhere, and its front as it grows")
    parser.add_argument("name", help="a space that is being run")
    parser.add_argument("--outputs", default="outputs", help="the folder or URL it writes to")
    parser.add_argument("--page", metavar="FILE", help="write a small page that reloads itself")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds (2)")
    parser.add_argument("--once", action="store_true", help="look once, do not wait for the end")
    parser.add_argument("--json", action="store_true", help="look once, for programs")
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
            stopped = seen.stopped  # before one looks: what came last is seen
            over = "stopped; the same command goes on" if stopped else "ended" if seen.ended else ""
            seen.look()
            display.tick()
            if chosen.page:
                write_text(Path(chosen.page), live(seen, every_s, over))
            if over or chosen.once:
                break
            time.sleep(every_s)
    print(printable(seen.progress.line()))
    if stopped:
        print("It was stopped, or failed; the same command goes on where it was.")
    return 0


def prune(words: list[str]) -> int:
    """Compact the results of a space."""
    parser = results_flags(
        "prune", "make few files of many, and take damaged ones away; no row is lost"
    )
    chosen = parser.parse_args(words)
    home = latest(chosen.name, chosen.outputs).store
    total = quarantine_corrupt(home)
    for store in definitions(home):
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
            shutil.copytree(run, earlier_run(home, run.name.partition("-")[2]))
