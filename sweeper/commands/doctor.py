"""Is everything in order? Every fact and calibration loads; every simulator answers a point."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from simulators.core.contract import WarmsUp, load_simulator
from simulators.core.errors import UserError
from simulators.core.folder import FOLDERS, SIMULATORS, Folder, read_toml
from sweeper import config, places
from sweeper.commands.flags import flags
from sweeper.commands.spaces import read_space
from sweeper.space import Span
from sweeper.work import evaluate


def main(words: list[str]) -> int:
    """Print one line per thing; exit code 1 when one is out of order."""
    flags("doctor", "load every fact and calibration, run one point per simulator").parse_args(
        words
    )
    failed = 0
    for what, check in _examinations():
        try:
            print(f"ok      {what}: {check()}")
        except UserError as error:
            failed += 1
            print(f"FAILED  {what}: {error}")
    print(
        f"python {sys.version.split()[0]}; "
        + ("all in order" if not failed else f"{failed} out of order")
    )
    return 1 if failed else 0


def _examinations() -> list[tuple[str, Callable[[], str]]]:
    found: list[tuple[str, Callable[[], str]]] = [
        (folder.plural, functools.partial(_facts, folder))
        for folder in FOLDERS.values()
        if folder.suffix == ".toml" and folder.names()
    ]
    found += [(f"space {name}", functools.partial(_space, name)) for name in places.spaces()]
    found += [(f"simulator {n}", functools.partial(_one_point, n)) for n in SIMULATORS.names()]
    return found


def _facts(folder: Folder) -> str:
    for name in folder.names():
        read_toml(folder.find(name))
    return f"{len(folder.names())} files"


def _space(name: str) -> str:
    space = config.space_of(read_space(places.spaces()[name]))
    return f"{space.size:,} points"


def _one_point(name: str) -> str:
    simulator = load_simulator(name)
    if isinstance(simulator, WarmsUp):
        simulator.warm_up()
    for space_name, file in places.spaces().items():
        space = config.space_of(read_space(file))
        if space.simulator == name:
            for lo in range(min(64, len(space))):
                where = Span(lo, lo + 1)
                kept = space.kept(where)
                if kept is None or kept.all():
                    row = evaluate(simulator, space.batch(where)).slice(0, 1).to_pylist()[0]
                    if row["status"] == "error":
                        raise UserError(f"the first point of {space_name}: {row['reason']}")
                    return f"the first point of {space_name} is {row['status']}"
    return "no space asks it"
