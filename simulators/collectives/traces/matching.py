"""Operators of several ranks as one graph: sends meet receives, collectives wait for all.

The k-th send from one rank to another with the same tag and size belongs to the k-th such receive,
which ends when the send has ended. The k-th collective of a group is the same on each of its ranks.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulators.collectives.traces.operators import Operator
from simulators.collectives.traces.timeline import COMMUNICATION, COMPUTE, RECEIVE, TraceNode
from simulators.core.errors import UserError


@dataclass(frozen=True)
class _Issued:
    """An operator of a rank, and the position of its node."""

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
    """Return the nodes of all ranks, in order of ranks and then of ids.

    `communication_ns` is the time of a send or collective of a rank alone on its network.

    Raises:
        UserError: an id occurs twice, or an operator waits for one that is not there; a send
            without a receive or the reverse; a collective that some rank of its group lacks or has
            in another order. Names the operators.
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
                    f"operator {o.id} '{o.name}' waits for {missing[0]}, which is not there"
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
    """Yield the positions of every send and of its receive."""
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
    """Yield the positions of the nodes of every collective among ranks."""
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
                raise UserError(f"{most[len(mine)]}: rank {rank} never comes to it")
            for one, other in zip(most, mine, strict=True):
                a, b = one.operator, other.operator
                if (a.collective, a.size_bytes) != (b.collective, b.size_bytes):
                    raise UserError(f"{one} meets {other}; they are not the same")
        yield from ([by_rank[rank][k].node for rank in ranks] for k in range(len(most)))
