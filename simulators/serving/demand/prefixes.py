"""Prefixes that requests share: paths through a prefix tree.

Each request is a path through a prefix tree, from its first token on. A node is a
run of tokens that requests share: a stretch of the system prompt, the history of a session up to a
turn, or a block of a trace, whose hash covers its content and all tokens before. The last node of a
path belongs to one request: the rest of its prompt and its output, without the last token, whose
keys are never computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulators.core.jit import Ints

STRETCH = 512
"""Tokens of a system prompt per node of the tree, the unit of its cache hits. A choice: at most the
tokens that engines compute at a time."""


@dataclass(frozen=True)
class Prefixes:
    """Paths of requests through the prefix tree; shared prefixes are nodes of equal number."""

    nodes: Ints  # of all requests, paths concatenated
    ends: Ints  # tokens of the request up to the end of each node
    stops: Ints  # end of each request's path

    def take(self, which: Ints) -> Prefixes:
        """Return the paths of some requests.

        >>> two = own([3, 5])
        >>> two.take(np.array([1])).ends.tolist()
        [4]
        """
        starts, counts = self._starts()[which], np.diff(self.stops, prepend=0)[which]
        rows = _ranges(starts, counts)
        return Prefixes(self.nodes[rows], self.ends[rows], np.cumsum(counts))

    def apart(self, group: Ints) -> Prefixes:
        """Return the paths with nodes shared only within a group of requests.

        >>> of_sessions(np.array([0, 1, 0]), np.array([9, 9, 9])).apart(np.array([0, 1, 0])).nodes
        array([0, 2, 3, 1])
        """
        groups = np.repeat(group, np.diff(self.stops, prepend=0))
        pairs = np.unique(np.stack((groups, self.nodes)), axis=1, return_inverse=True)[1]
        return Prefixes(pairs.reshape(-1), self.ends, self.stops)

    def behind(self, system_tokens: int) -> Prefixes:
        """Return the paths with the nodes of one system prompt in front.

        >>> own([3, 5]).behind(1000).ends.tolist()
        [512, 1000, 1002, 512, 1000, 1004]
        """
        if system_tokens == 0:
            return self
        ends = np.append(np.arange(STRETCH, system_tokens, STRETCH), system_tokens)
        first = int(self.nodes.max()) + 1
        places = np.repeat(self._starts(), ends.size)
        return Prefixes(
            np.insert(self.nodes, places, np.tile(first + np.arange(ends.size), self.stops.size)),
            np.insert(self.ends + system_tokens, places, np.tile(ends, self.stops.size)),
            self.stops + ends.size * np.arange(1, self.stops.size + 1),
        )

    def max_prefix_hits(self) -> Ints:
        """Return the cached tokens of each request, in order, with an unlimited prefix cache.

        >>> of_sessions(np.array([0, 1, 0]), np.array([10, 30, 8])).max_prefix_hits().tolist()
        [0, 9, 0]
        """
        req = np.repeat(np.arange(self.stops.size), np.diff(self.stops, prepend=0))
        first = np.full(int(self.nodes.max()) + 1, self.stops.size)
        np.minimum.at(first, self.nodes, req)
        new = np.flatnonzero(first[self.nodes] == req)  # includes the last node of every path
        starts = self._starts()
        reached = new[np.searchsorted(new, starts)]
        found: Ints = np.where(reached > starts, self.ends[reached - 1], 0)
        return found

    def next_uses(self) -> Ints:
        """Return the next request, in order, that uses the node of each step; or their number.

        >>> of_sessions(np.array([0, 1, 0]), np.array([10, 30, 8])).next_uses().tolist()
        [1, 3, 3, 3]
        """
        req = np.repeat(np.arange(self.stops.size), np.diff(self.stops, prepend=0))
        order = np.lexsort((req, self.nodes))
        follows = np.append(self.nodes[order][1:] == self.nodes[order][:-1], False)
        found = np.full(self.nodes.size, self.stops.size)
        found[order[follows]] = req[order[np.flatnonzero(follows) + 1]]
        return found

    def _starts(self) -> Ints:
        return np.concatenate([np.zeros(1, np.int64), self.stops[:-1]])


@dataclass(frozen=True)
class ChainedPaths:
    """Paths of requests that continue earlier ones; nodes on the paths of many are stored once.

    A chain is a list of nodes, each of which continues the one before. The path of a request is the
    beginning of a chain and a node of its own. A session of n turns takes n steps, not n * n / 2.
    """

    nodes: Ints  # of all chains, one after another
    ends: Ints  # tokens up to the end of each node
    begins: Ints  # of each request: the first step of its chain
    stops: Ints  # of each request: the end of its part of the chain
    last_ends: Ints  # tokens of each request up to the end of its own node

    def take(self, which: Ints) -> ChainedPaths:
        """Return the paths of some requests, with all chains."""
        return ChainedPaths(
            self.nodes, self.ends, self.begins[which], self.stops[which], self.last_ends[which]
        )

    def own_nodes(self) -> Ints:
        """Return the last node of each request's path."""
        own_nodes: Ints = int(self.nodes.max(initial=-1)) + 1 + np.arange(self.begins.size)
        return own_nodes

    def expanded(self) -> Prefixes:
        """Return the same paths, each stored apart.

        >>> begins, stops, last_ends = np.array([0, 0]), np.array([1, 2]), np.array([9, 13])
        >>> two = ChainedPaths(np.array([0, 1]), np.array([8, 12]), begins, stops, last_ends)
        >>> two.expanded().nodes.tolist(), two.expanded().ends.tolist()
        ([0, 2, 0, 1, 3], [8, 9, 8, 12, 13])
        """
        counts = self.stops - self.begins
        rows, stops = _ranges(self.begins, counts), np.cumsum(counts)
        return Prefixes(
            np.insert(self.nodes[rows], stops, self.own_nodes()),
            np.insert(self.ends[rows], stops, self.last_ends),
            stops + np.arange(1, stops.size + 1),
        )

    def apart(self, group: Ints) -> Prefixes:
        """Return the paths with nodes shared only within a group of requests."""
        return self.expanded().apart(group)

    def behind(self, system_tokens: int) -> ChainedPaths:
        """Return the paths with the nodes of one system prompt in front of every chain."""
        if system_tokens == 0:
            return self
        ends = np.append(np.arange(STRETCH, system_tokens, STRETCH), system_tokens)
        chains = np.unique(self.begins)
        first = int(self.nodes.max(initial=-1)) + 1
        places, earlier = np.repeat(chains, ends.size), np.searchsorted(chains, self.begins)
        return ChainedPaths(
            np.insert(self.nodes, places, np.tile(first + np.arange(ends.size), chains.size)),
            np.insert(self.ends + system_tokens, places, np.tile(ends, chains.size)),
            self.begins + ends.size * earlier,
            self.stops + ends.size * (earlier + 1),
            self.last_ends + system_tokens,
        )


def own(tokens: Ints) -> Prefixes:
    """Return paths without shared nodes; `tokens` counts prompt and output of each request.

    >>> own([3, 5]).nodes.tolist()
    [0, 1]
    """
    ends = np.asarray(tokens, np.int64) - 1
    return Prefixes(np.arange(ends.size), ends, np.arange(1, ends.size + 1))


def of_sessions(turn: Ints, tokens: Ints) -> Prefixes:
    """Return the paths of requests that repeat the earlier turns of their session.

    Turns of a session are consecutive; `tokens` counts prompt (with the history) and output.

    >>> of_sessions(np.array([0, 1, 0]), np.array([10, 30, 8])).nodes.tolist()
    [0, 0, 1, 2]
    """
    counts = turn + 1
    nodes = _ranges(np.arange(turn.size) - turn, counts)
    return Prefixes(nodes, np.asarray(tokens, np.int64)[nodes] - 1, np.cumsum(counts))


def of_hashes(hashes: Ints, stops: Ints, hashed: int, prompt: Ints, output: Ints) -> Prefixes:
    """Return the paths of requests whose prompt blocks are identified by hashes.

    `hashes` are those of all requests' blocks of `hashed` tokens, concatenated; each request's end
    at `stops`. The last block of a prompt may have fewer tokens.

    >>> of_hashes(np.array([7, 8, 7]), np.array([2, 3]), 4, np.array([6, 3]), np.array([9, 9])).ends
    array([ 4,  6, 14,  3, 11])
    """
    known, numbered = np.unique(hashes, return_inverse=True)
    counts = np.diff(stops, prepend=0)
    place = _ranges(np.zeros(stops.size, np.int64), counts)
    ends = np.minimum(hashed * (place + 1), np.repeat(prompt, counts))
    return Prefixes(
        np.insert(numbered.reshape(-1), stops, known.size + np.arange(stops.size)),
        np.insert(ends, stops, prompt + output - 1),
        stops + np.arange(1, stops.size + 1),
    )


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """Return ranges of `counts` integers from each start, concatenated.

    >>> _ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    first = np.cumsum(counts) - counts
    rows: Ints = np.arange(int(counts.sum())) - np.repeat(first - starts, counts)
    return rows
