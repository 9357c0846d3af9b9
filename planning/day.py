"""The load of a day, from a CSV of hours and request rates, for `ask --traffic day.csv`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

from planning.calibrate.measurements import read_table
from planning.flags.serving import ServingFlags
from simulators.core.errors import UserError
from simulators.serving.demand.sessions import has_sessions
from simulators.serving.options import AutoscaleConfig
from sweeper.questions import Day

COLUMNS = "hour", "qps"
HOURS = 24.0


def is_day(traffic: str) -> bool:
    """Return whether the value of `--traffic` names a file.

    >>> is_day("day.csv"), is_day("1x,2x")
    (True, False)
    """
    return traffic.endswith(".csv")


def with_peak(flags: ServingFlags) -> tuple[ServingFlags, Day | None]:
    """Return flags that ask about the peak of a day, and the day; None without a file.

    Raises:
        UserError: the file is no day, or a flag does not fit to it.
    """
    limits = ("min_replicas", "max_replicas", "startup", "cool_down")
    if not is_day(flags.traffic):
        for name in limits:
            if getattr(flags, name):
                written = name.replace("_", "-")
                raise UserError(f"--{written} needs the load of a day: --traffic day.csv")
        return flags, None
    if flags.qps is not None or flags.concurrency or flags.lanes or has_sessions(flags.workload):
        raise UserError(
            f"--traffic {flags.traffic} states requests per second: leave out --qps, "
            "--concurrency and --lanes, and use a workload without sessions"
        )
    if flags.max_replicas and flags.max_replicas < flags.min_replicas:
        raise UserError(
            f"--max-replicas {flags.max_replicas} is less than --min-replicas {flags.min_replicas}"
        )
    usual = AutoscaleConfig()
    starts_h, loads = read_day(Path(flags.traffic))
    day = Day(
        axis="qps",
        starts_h=starts_h,
        loads=loads,
        min_replicas=flags.min_replicas,
        max_replicas=flags.max_replicas,
        startup_s=usual.startup_s if flags.startup is None else flags.startup,
        cool_down_s=usual.scale_down_s if flags.cool_down is None else flags.cool_down,
    )
    for name, seconds in (("startup", day.startup_s), ("cool-down", day.cool_down_s)):
        if seconds < 0.0:
            raise UserError(f"--{name} {seconds:g}: write a time that is not negative")
    return replace(flags, traffic="1x", qps=max(loads)), day


def read_day(file: Path) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the hours at which loads begin, and the requests per second of each.

    A load lasts until the next one, the last one until the end of the day.

    Raises:
        UserError: a column is missing or has text, hours do not ascend from 0, or a load is not
            above 0.
    """
    table = read_table(file, COLUMNS)
    hours, loads = (tuple(_numbers(file, name, table[name].to_pylist())) for name in COLUMNS)
    if not hours or hours[0] != 0.0:
        raise UserError(f"{file}: the first hour must be 0")
    ends = (*hours[1:], HOURS)
    if any(not a < b for a, b in zip(hours, ends, strict=True)):
        raise UserError(f"{file}: hours must ascend from 0 and stay below 24")
    for hour, qps in zip(hours, loads, strict=True):
        if not (qps > 0.0 and isfinite(qps)):
            raise UserError(f"{file}: hour {hour:g} has {qps:g} qps; write a number above 0")
    return hours, loads


def _numbers(file: Path, column: str, values: Iterable[Any]) -> Iterator[float]:
    for row, value in enumerate(values, start=2):
        try:
            yield nan if value is None else float(value)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{file}: line {row}: {column} is '{value}'; write a number, such as 13.5"
            ) from error
