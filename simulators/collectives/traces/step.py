"""A step of many operators: its messages, the part of the network each is on, and its timeline.

Every rank of a step has a program, or all run the same one. Messages that are alike, of one kind
and size among the same ranks, take the same time, alone on their part of the network.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulators.collectives.traces.layers import operators_of, read_layers
from simulators.collectives.traces.matching import nodes_of
from simulators.collectives.traces.operators import Message, Operator, read_graph
from simulators.collectives.traces.timeline import Timeline, timeline
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import Folder, reader

TRACES = Folder("trace", "collectives/traces", ".json")
CHAKRA, GRAPH, LAYERS = ".et", ".json", ".csv"


@dataclass(frozen=True)
class TraceStep:
    """Programs by rank; ranks with equal programs share the program of rank 0."""

    programs: tuple[tuple[Operator, ...], ...]
    ranks: int

    @functools.cached_property
    def messages(self) -> dict[Message, int]:
        """How often each message is sent, counted at every rank that has an operator for it."""
        found: dict[Message, int] = {}
        for rank, program in enumerate(self.programs):
            for operator in program:
                if operator.kind in ("send", "collective"):
                    message = self._message(operator, rank)
                    found[message] = found.get(message, 0) + 1
        return found

    def timeline(self, taken_ns: Mapping[Message, int], issue: str) -> Timeline:
        """Return when every operator runs.

        Raises:
            UserError: operators never meet, or wait for each other.
        """
        given = [{o.id: o for o in program} for program in self.programs]
        programs = dict(enumerate(self.programs))
        if self.ranks > len(programs):  # one of the equal ranks runs for all
            programs = {0: tuple(dataclasses.replace(o, group=()) for o in self.programs[0])}

        def taken(operator: Operator, rank: int) -> int:
            return taken_ns[self._message(given[rank][operator.id], rank)]

        return timeline(nodes_of(programs, taken), issue)

    def _message(self, operator: Operator, rank: int) -> Message:
        kind, ranks = operator.collective, tuple(sorted(operator.group))
        if operator.kind == "send":
            kind, ranks = "send_recv", (rank, operator.peer)
        ranks = ranks or tuple(range(self.ranks))
        if not 0 <= min(ranks) <= max(ranks) < self.ranks:
            raise UserError(
                f"operator {operator.id} '{operator.name}' is of ranks {list(ranks)}; "
                f"there are {self.ranks}"
            )
        return Message(kind, operator.size_bytes, ranks)


def trace_files(name: str) -> tuple[Path, ...]:
    """Return the files behind a trace: a folder's, in order of their ranks, or the one.

    Raises:
        UserError: there is no such file, or files of a folder do not say their ranks.
    """
    if not Path(name).is_dir():
        return (Path(name) if Path(name).is_file() else TRACES.find(name),)
    files = sorted(Path(name).glob(f"*{CHAKRA}")) or sorted(Path(name).glob(f"*{GRAPH}"))
    ranks = {int(digits[-1]): f for f in files if (digits := re.findall(r"\d+", f.stem))}
    if not files or sorted(ranks) != list(range(len(files))):
        raise UserError(
            f"trace '{name}': a folder has a file of each rank, step.0{CHAKRA}, step.1{CHAKRA} ... "
            f"or step.0{GRAPH} ...; here are {len(files)}, of ranks {sorted(ranks)}"
        )
    return tuple(ranks[rank] for rank in sorted(ranks))


def load_step(name: str, ranks: int) -> TraceStep:
    """Return a step on a network of so many ranks.

    Raises:
        Infeasible: the trace is of another number of ranks.
        UserError: a file is not there or not right.
    """
    files = trace_files(name)
    if len(files) not in (1, ranks):
        raise Infeasible("other_ranks", f"the trace is of {len(files)} ranks, the network {ranks}")
    return TraceStep(tuple(_program(file, file.stat().st_mtime_ns) for file in files), ranks)


@functools.lru_cache(maxsize=4096)
def _program(file: Path, _mtime_ns: int) -> tuple[Operator, ...]:
    if file.suffix == CHAKRA:
        program: tuple[Operator, ...] = reader("chakra", "read_chakra")(file)
        return program
    return operators_of(read_layers(file)) if file.suffix == LAYERS else read_graph(file)
