"""A step of many operators: its messages, the graph of all ranks, and its timeline.

Every rank of a step has a program, or all ranks run the same program. Messages of one kind and size
among the same ranks take the same time, alone on their part of the network. The k-th send from one
rank to another with the same tag and size belongs to the k-th such receive, which ends when the
send has ended. The k-th collective of a group is the same on each of its ranks.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from simulators.collectives.traces.operators import (
    Message,
    Operator,
    operators_of,
    read_graph,
    read_layers,
)
from simulators.collectives.traces.timeline import (
    COMMUNICATION,
    COMPUTE,
    RECEIVE,
    Timeline,
    TraceNode,
    timeline,
)
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import Folder, reader


@dataclass(frozen=True)
class _Issued:
    """An operator of a rank, with the position of its node."""

    rank: int
    operator: Operator
    node: int

    def __str__(self) -> str:
        o = self.operator
        what = f"{o.collective} of {o.size_bytes} bytes" if o.kind == "collective" else o.kind
        return f"operator {o.id} '{o.name}' of rank {self.rank} ({what})"


def nodes_of(
    programs: Mapping[int, Sequence[Operator]], communication_ns: Callable[[Operator, int], int]
) -> tuple[TraceNode, ...]:
    """Return the nodes of all ranks, ordered by rank and id.

    `communication_ns` returns the time of a send or collective of a rank, without contention.

    Raises:
        UserError: an id occurs twice, an operator waits for a missing operator, a send or receive
            has no partner, or a collective is missing on a rank of its group or in another order.
    """
    nodes: list[TraceNode] = []
    issued: list[_Issued] = []
    for rank in sorted(programs):
        ordered = sorted(programs[rank], key=lambda o: o.id)
        if twice := [a.id for a, b in pairwise(ordered) if a.id == b.id]:
            raise UserError(f"operator {twice[0]} occurs twice")
        position = {o.id: i for i, o in enumerate(ordered, start=len(nodes))}
        for o in ordered:
            if missing := [before for before in o.after if before not in position]:
                raise UserError(
                    f"operator {o.id} '{o.name}' waits for {missing[0]}, which does not exist"
                )
            after, is_compute = tuple(position[before] for before in o.after), o.kind == "compute"
            issued.append(_Issued(rank, o, len(nodes)))
            if o.kind == "recv":
                nodes.append(TraceNode(o.name, 0, after, RECEIVE, rank))
            else:
                taken_ns = o.duration_ns if is_compute else communication_ns(o, rank)
                kind = COMPUTE if is_compute else COMMUNICATION
                nodes.append(TraceNode(o.name, taken_ns, after, kind, rank))
    for sent, received in _pairs(issued):
        after = (*nodes[received].after, sent)
        nodes[received] = dataclasses.replace(nodes[received], after=after)
    for group, members in enumerate(_groups(issued, tuple(sorted(programs)))):
        for member in members:
            nodes[member] = dataclasses.replace(nodes[member], group=group)
    return tuple(nodes)


def _pairs(issued: Sequence[_Issued]) -> Iterator[tuple[int, int]]:
    ends: dict[tuple[int, int, int, int], tuple[list[_Issued], list[_Issued]]] = defaultdict(
        lambda: ([], [])
    )
    for one in issued:
        o = one.operator
        if o.kind == "send":
            ends[one.rank, o.peer, o.tag, o.size_bytes][0].append(one)
        if o.kind == "recv":
            ends[o.peer, one.rank, o.tag, o.size_bytes][1].append(one)
    for (source, target, tag, size), (sends, receives) in ends.items():
        for lonely, word in ((sends[len(receives) :], "recv"), (receives[len(sends) :], "send")):
            if lonely:
                raise UserError(
                    f"{lonely[0]}: no {word} matches it; from rank {source} to rank {target} with "
                    f"tag {tag} and {size} bytes there are {len(sends)} sends and {len(receives)} "
                    "receives"
                )
        yield from ((s.node, r.node) for s, r in zip(sends, receives, strict=True))


def _groups(issued: Sequence[_Issued], everyone: tuple[int, ...]) -> Iterator[list[int]]:
    of_group: dict[tuple[int, ...], dict[int, list[_Issued]]] = {}
    for one in issued:
        if one.operator.kind == "collective":
            ranks = tuple(sorted(one.operator.group)) or everyone
            if one.rank not in ranks:
                raise UserError(f"{one}: its group {list(ranks)} is without rank {one.rank}")
            of_group.setdefault(ranks, {}).setdefault(one.rank, []).append(one)
    for ranks, by_rank in of_group.items():
        most = max(by_rank.values(), key=len)
        for rank in ranks:
            mine = by_rank.get(rank, [])
            if len(mine) < len(most):
                raise UserError(f"{most[len(mine)]}: rank {rank} has no matching collective")
            for one, other in zip(most, mine, strict=True):
                a, b = one.operator, other.operator
                if (a.collective, a.size_bytes) != (b.collective, b.size_bytes):
                    raise UserError(f"{one} does not match {other}")
        yield from ([by_rank[rank][k].node for rank in ranks] for k in range(len(most)))


TRACES = Folder("trace", "collectives/traces", ".json")
CHAKRA, GRAPH, LAYERS = ".et", ".json", ".csv"


@dataclass(frozen=True)
class TraceStep:
    """Programs by rank; a single program is shared by all ranks."""

    programs: tuple[tuple[Operator, ...], ...]
    ranks: int

    @functools.cached_property
    def messages(self) -> dict[Message, int]:
        """Number of sends of each message, counted at every rank with the message."""
        found: dict[Message, int] = {}
        for rank, program in enumerate(self.programs):
            for operator in program:
                if operator.kind in ("send", "collective"):
                    message = self._message(operator, rank)
                    found[message] = found.get(message, 0) + 1
        return found

    @property
    def recorded_ns(self) -> int:
        """Durations of sends and collectives that the trace states, of the rank with most; or 0."""
        return max(
            sum(o.duration_ns for o in program if o.kind in ("send", "collective"))
            for program in self.programs
        )

    def timeline(self, taken_ns: Mapping[Message, int], issue: str) -> Timeline:
        """Return the timeline of all operators.

        Raises:
            UserError: operators have no partner, or wait for each other.
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
    """Return the files of a trace: those of a folder ordered by rank, or a single file.

    Raises:
        UserError: the file is missing, or names in a folder do not state all ranks.
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
    """Return a step on a network of `ranks` ranks.

    Raises:
        Infeasible: the trace has another number of ranks.
        UserError: a file is missing or malformed.
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
