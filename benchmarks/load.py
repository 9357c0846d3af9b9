"""Time and memory of commands on large sweeps and on many small sweeps.

Ten million points of one space; a space in thousands of parts, and with one more value on an axis;
thousands of small sweeps in one folder; a trillion points under constraints. Times are wall times
with the start of Python, memory is the peak of the command's own process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.sweep_overhead import OBJECTIVES
from simulators.core.checks import Check, print_checks
from sweeper.__main__ import main as sweeper
from sweeper.engines.task import Task
from sweeper.space.design_space import space_of
from sweeper.space.points import Span, split
from sweeper.space.space_file import read_space
from sweeper.store.keys import define, keys
from sweeper.store.store import Store

_ROOT = Path(__file__).resolve().parents[1]
_MEASURED_COMMAND = """\
import resource, sys
from sweeper.__main__ import main
code = main(sys.argv[1:])
print(f"\\nPEAK {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}", file=sys.stderr)
sys.exit(code)
"""
_LATEST = 20
"""Sweeps, the last of many, whose mean time counts."""


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--values", type=int, default=10, help="of each of seven axes")
    parser.add_argument("--parts", type=int, default=20_000)
    parser.add_argument("--sweeps", type=int, default=2_000)
    parser.add_argument("--axis", type=int, default=1_000, help="values of each of four axes")
    chosen = parser.parse_args()
    checks: list[Check] = []
    for measured in (
        many_points(chosen.values),
        many_parts(chosen.parts),
        many_sweeps(chosen.sweeps),
        many_combinations(chosen.axis),
    ):
        checks += measured
    print_checks(checks, as_json=chosen.json)


def many_points(values: int) -> Iterator[Check]:
    """Yield time and memory of a large sweep and of queries."""
    with tempfile.TemporaryDirectory() as name:
        folder, steps = Path(name), f"1..{values}"
        devices = ", ".join(f"device_{i}" for i in range(values))
        roofline(
            folder,
            "big",
            device=f"[{devices}]",
            m=steps,
            n=steps,
            k=steps,
            batch=steps,
            bandwidth=f"1e12..1e13 lin {values}",
            devices=steps,
        )
        rows = values**7
        yield from command_checks(
            "sweep", ask(folder, "+space=big", "engine=process", "plot=false"), rows
        )
        yield from command_checks("pareto", ask(folder, "pareto", "big"), rows)
        space = space_of(read_space(folder / "spaces" / "big.yaml"))
        key = keys(define(space), space.points(np.array([rows // 2])))[0]
        yield from command_checks("show KEY", ask(folder, "show", "big", key), rows)
        yield from command_checks("verify", ask(folder, "verify", "big"), rows)
        yield from command_checks("report", ask(folder, "report", "big"), rows)


def many_parts(count: int) -> Iterator[Check]:
    """Yield the seconds of resuming and querying a space with many parts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        roofline(folder, "parts", m="1..100", n="1..100", k="1..10", batch="1..10")
        space = space_of(read_space(folder / "spaces" / "parts.yaml"))
        task = Task(space, Store(f"{folder}/outputs/parts", define(space)), OBJECTIVES)
        for piece in split(Span(0, len(space)), count):
            task.answer(piece)
        again = ("+space=parts", "engine=process", "plot=false")
        for what, words in (("resume", again), ("pareto", ("pareto", "parts"))):
            seconds = ask(folder, *words).seconds
            yield Check(f"{count:,} parts: {what}", seconds, "s", 5.0, seconds <= 5.0)
        yield Check(f"{count:,} parts: prune", ask(folder, "prune", "parts").seconds, "s")
        seconds = ask(folder, "pareto", "parts").seconds
        yield Check(f"{count:,} parts: pareto after it", seconds, "s")
        roofline(folder, "parts", m="1..100", n="1..100", k="1..10", batch="1..11")
        for what, words in (("one more value", again), ("pareto then", ("pareto", "parts"))):
            yield Check(f"{count:,} parts: {what}", ask(folder, *words).seconds, "s")


def many_sweeps(count: int) -> Iterator[Check]:
    """Yield the seconds of a further small sweep in a folder of many sweeps."""
    for kind in ("spaces", "overrides of one space"):
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            seconds = []
            for i in range(count):
                space = f"small{i}" if kind == "spaces" else "small"
                roofline(Path(name), space, n="1..10")
                words = [f"+space={space}", f"space.axes.m={64 * i + 64}", "engine=inline"]
                seconds.append(_quietly([*words, "plot=false"]))
            mean = sum(seconds[-_LATEST:]) / len(seconds[-_LATEST:])
            yield Check(f"one of {count:,} {kind}", mean, "s", 0.15, mean <= 0.15)


def many_combinations(values: int) -> Iterator[Check]:
    """Yield the seconds of planning and sampling a large space under constraints."""
    with tempfile.TemporaryDirectory() as name:
        folder, steps = Path(name), f"1..{values}"
        rules = f'["m * n <= {values**2 // 2}", "k * batch <= {values}"]'
        roofline(folder, "huge", m=steps, n=steps, k=steps, batch=steps, constraints=rules)
        plan = ask(folder, "plan", "+space=huge")
        yield Check("plan", plan.seconds, "s", 3.0, plan.seconds <= 3.0, values**4)
        for sampler in ("random", "sobol"):
            words = (f"sampler={sampler}", "sampler.points=1024", "engine=process", "plot=false")
            seconds = ask(folder, "+space=huge", *words).seconds
            yield Check(f"1,024 points by {sampler}", seconds, "s", rows=values**4)


def command_checks(what: str, asked: CommandRun, rows: int) -> list[Check]:
    """Return the checks of a command: seconds and peak memory."""
    peak = asked.peak_bytes / 1e6
    return [
        Check(f"{what}: time", asked.seconds, "s", rows=rows),
        Check(f"{what}: memory", peak, "MB", 500.0, peak <= 500.0, rows),
    ]


def _quietly(words: Sequence[str]) -> float:
    """Run a command in this process without its output, and return its seconds."""
    started = time.perf_counter()
    with contextlib.ExitStack() as silence:
        nothing = silence.enter_context(Path(os.devnull).open("w"))
        silence.enter_context(contextlib.redirect_stdout(nothing))
        silence.enter_context(contextlib.redirect_stderr(nothing))
        code = sweeper(list(words))
    assert code == 0, words
    return time.perf_counter() - started


@dataclass(frozen=True)
class CommandRun:
    """Seconds and peak memory of a finished command."""

    seconds: float
    peak_bytes: float


def ask(folder: Path, *words: str) -> CommandRun:
    """Run a command of the sweeper in a folder."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED_COMMAND, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    peak = int(done.stderr.rpartition("PEAK ")[2])
    return CommandRun(seconds, 1024.0 * peak)


def roofline(folder: Path, name: str, **axes: str) -> None:
    """Write a space of the benchmark's simulator with axes as in YAML."""
    usual = {
        n: str(v) for n, v in {"device": "device_0", "m": 64, "n": 64, "k": 64, "batch": 8}.items()
    }
    usual |= {"bandwidth": "1e12", "devices": "1"}
    given = {**usual, **axes}
    rules = given.pop("constraints", "[]")
    lines = "".join(f"  {n}: {v}\n" for n, v in given.items())
    (folder / "spaces").mkdir(exist_ok=True)
    (folder / "spaces" / f"{name}.yaml").write_text(
        f"simulator: benchmarks.points.roofline\naxes:\n{lines}constraints: {rules}\n"
    )


if __name__ == "__main__":
    main()
