"""Operators of several ranks become one graph: sends meet receives, collectives wait for all.

The k-th send from one rank to another with the same tag and size belongs to the k-th such receive,
which ends when the send has ended. The k-th collective of a group is the same on each of its ranks.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from simulators.collectives.traces.operators import Operator, nodes_of
from simulators.collectives.traces.timeline import RECEIVE, Node
from simulators.core.errors import UserError

Place = tuple[int, Operator, int]  # rank, operator, position of its node


def nodes_of_ranks(
    programs: Mapping[int, Sequence[Operator]], communication_ns: Callable[[Operator], int]
) -> tuple[Node, ...]:
    """Return the nodes of all ranks, in order of ranks and then of ids.

    Args:
        programs: the operators of each rank.
        communication_ns: the time of a send or collective alone on its network.

    Raises:
        UserError: a send without a receive or the reverse, a collective that some rank of its group
            lacks or has in another order; names the operators.
    """
    nodes: list[Node] = []
    places: list[Place] = []
    for rank in sorted(programs):
        base = len(nodes)
        ordered = sorted(programs[rank], key=lambda o: o.id)
        for o, node in zip(ordered, nodes_of(ordered, communication_ns), strict=True):
            places.append((rank, o, len(nodes)))
            after = tuple(base + before for before in node.after)
            nodes.append(dataclasses.replace(node, after=after, rank=rank))
    for sent, received in _pairs(places):
        after = (*nodes[received].after, sent)
        nodes[received] = dataclasses.replace(
            nodes[received], after=after, resource=RECEIVE, duration_ns=0
        )
    for group, members in enumerate(_groups(places, tuple(sorted(programs)))):
        for position in members:
            nodes[position] = dataclasses.replace(nodes[position], group=group)
    return tuple(nodes)


def _pairs(places: Sequence[Place]) -> list[tuple[int, int]]:
    """Return the positions of every send and of its receive."""
    ends: dict[tuple[int, int, int, int], tuple[list[Place], list[Place]]] = defaultdict(
        lambda: ([], [])
    )
    for place in places:
        rank, o, _ = place
        if o.kind == "send":
            ends[rank, o.peer, o.tag, o.size_bytes][0].append(place)
        if o.kind == "recv":
            ends[o.peer, rank, o.tag, o.size_bytes][1].append(place)
    pairs = []
    for (source, target, tag, size), (sends, receives) in ends.items():
        for lonely, word in (
            (sends[len(receives) :], "recv"),
            (receives[len(sends) :], "send"),
        ):
            if lonely:
                raise UserError(
                    f"{_said(lonely[0])}: no {word} matches it; from rank {source} to rank "
                    f"{target} with tag {tag} and {size} bytes there are {len(sends)} sends and "
                    f"{len(receives)} receives"
                )
        pairs += [(s[2], r[2]) for s, r in zip(sends, receives, strict=True)]
    return pairs


def _groups(places: Sequence[Place], everyone: tuple[int, ...]) -> list[list[int]]:
    """Return the positions of the nodes of every collective among ranks."""
    of_group: dict[tuple[int, ...], dict[int, list[Place]]] = {}
    for place in places:
        rank, o, _ = place
        if o.kind == "collective":
            ranks = tuple(sorted(o.group)) or everyone
            if rank not in ranks:
                raise UserError(f"{_said(place)}: its group {list(ranks)} is without rank {rank}")
            of_group.setdefault(ranks, {}).setdefault(rank, []).append(place)
    found = []
    for ranks, by_rank in of_group.items():
        most = max(by_rank.values(), key=len)
        for rank in ranks:
            mine = by_rank.get(rank, [])
            if len(mine) < len(most):
                raise UserError(f"{_said(most[len(mine)])}: rank {rank} never comes to it")
            for one, other in zip(most, mine, strict=True):
                if (one[1].collective, one[1].size_bytes) != (
                    other[1].collective,
                    other[1].size_bytes,
                ):
                    raise UserError(f"{_said(one)} meets {_said(other)}; they are not the same")
        found += [[by_rank[rank][k][2] for rank in ranks] for k in range(len(most))]
    return found


def _said(place: Place) -> str:
    rank, o, _ = place
    what = f"{o.collective} of {o.size_bytes} bytes" if o.kind == "collective" else o.kind
    return f"operator {o.id} '{o.name}' of rank {rank} ({what})"
