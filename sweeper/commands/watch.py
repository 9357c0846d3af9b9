"""Watch a sweep that runs elsewhere: in another terminal, on another machine, on a cluster."""

from __future__ import annotations

import time
from pathlib import Path

from sweeper.commands.flags import flags
from sweeper.report.answers import latest
from sweeper.report.browser.live import live
from sweeper.report.progress import shown
from sweeper.report.tables import write_text
from sweeper.report.watching import Watch, state
from sweeper.terminal import printable


def main(words: list[str]) -> int:
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
    watch = Watch(latest(chosen.name, chosen.outputs))
    if chosen.json:
        watch.look()
        print(state(watch))
        return 0
    with shown(watch.progress) as display:
        display.say(f"watching {watch.answers.folder}")
        while True:
            ended = watch.ended  # before one looks: what came last is seen
            watch.look()
            display.tick()
            if chosen.page:
                write_text(Path(chosen.page), live(watch, every_s))
            if ended or chosen.once:
                break
            time.sleep(every_s)
    print(printable(watch.progress.line()))
    return 0
