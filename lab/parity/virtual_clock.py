"""Requests, arrivals and records of an engine's scheduler that runs on a virtual clock.

There is no model: an iteration of `tokens` scheduled tokens and `context` keys takes `a_s + b_s *
tokens + c_s * context` seconds. Runs in the Python of an engine; `lab.parity.replay_engine` has the
other side.
"""

from __future__ import annotations

import heapq
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GROUP = 1 << 40
"""Token ids of shared prefixes start here; a request's own ids below."""


def token_ids(requests: dict[str, list[int]]) -> list[list[int]]:
    """Return the prompts: a session's history or a group's prefix, then ids of the request.

    With `nodes`, the parts of a path that ends at `ends`; the last part is the request's own.
    """
    if "nodes" in requests:
        paths = zip(requests["nodes"], requests["ends"], requests["prompt_tokens"], strict=True)
        return [path_ids(*path) for path in paths]  # type: ignore[arg-type]
    prompts: list[list[int]] = []
    for req, length in enumerate(requests["prompt_tokens"]):
        last, shared = requests["after"][req], list[int]()
        if requests["session"][req] >= 0 and last >= 0:
            answer = range(requests["output_tokens"][last])
            shared = prompts[last] + [output_id(last, k) for k in answer]
        elif requests["prefix_group"][req] >= 0:
            first = GROUP + (requests["prefix_group"][req] << 20)
            shared = [first + k for k in range(requests["prefix_tokens"][req])]
        prompts.append(shared + [output_id(req, -1 - k) for k in range(length - len(shared))])
    return prompts


def path_ids(nodes: list[int], ends: list[int], length: int) -> list[int]:
    """Return the tokens of a prompt along a path: equal nodes have equal tokens."""
    tokens: list[int] = []
    for node, end in zip(nodes, ends, strict=True):
        first = GROUP + (node << 20)
        tokens += range(first + len(tokens), first + min(end, length))
    return tokens


def output_id(req: int, place: int) -> int:
    """Return a token id that no other request and place has."""
    return ((2 * req + 1) << 20) + place


class VirtualClock:
    """The time, the requests to come, and the records of a run."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.requests = job, job["requests"]
        after, count = self.requests["after"], len(self.requests["after"])
        self.prompts = token_ids(self.requests)
        given_s = enumerate(self.requests["given_s"])
        self.arriving = [(at_s, i) for i, at_s in given_s if after[i] == -1]
        heapq.heapify(self.arriving)
        self.followers = {one: i for i, one in enumerate(after) if one >= 0}
        self.edges: dict[tuple[int, bool], list[tuple[int, float]]] = {}
        self.pending, self.ready_s = [0] * count, [0.0] * count
        for before, req, on_dispatch, delay_s in self.requests.get("edges", ()):
            self.edges.setdefault((before, on_dispatch), []).append((req, delay_s))
            self.pending[req] += 1
        self.unreleased = deque(i for i, one in enumerate(after) if one == -2)
        self.now = self.free_s = 0.0
        names = ("scheduled_s", "first_token_s", "last_token_s")
        self.times = {name: [-1.0] * count for name in names}
        self.counts = {name: [0] * count for name in ("cached_tokens", "preemptions")}
        self.rows: list[dict[str, float]] = []

    def arrived(self) -> Iterator[tuple[float, int]]:
        """Yield the requests that have arrived, and their times."""
        while self.arriving and self.arriving[0][0] <= self.now:
            at_s, req = heapq.heappop(self.arriving)
            self.release(req, at_s, on_dispatch=True)
            yield at_s, req

    def release(self, before: int, at_s: float, *, on_dispatch: bool) -> None:
        """Resolve the edges of a request at its dispatch or answer; send released requests."""
        for req, delay_s in self.edges.get((before, on_dispatch), ()):
            self.ready_s[req] = max(self.ready_s[req], at_s + delay_s)
            self.pending[req] -= 1
            if not self.pending[req]:
                heapq.heappush(self.arriving, (self.ready_s[req], req))

    def skip_to_arrival(self) -> None:
        """Advance the time to the next arrival."""
        self.now = max(self.now, self.arriving[0][0])

    def scheduled(self, req: int, cached_tokens: int) -> None:
        """Record a request's first batch."""
        if self.times["scheduled_s"][req] < 0.0:
            self.times["scheduled_s"][req] = self.now
            self.counts["cached_tokens"][req] = cached_tokens

    def launch(self, context: int, row: dict[str, float]) -> float:
        """Record a batch, which starts after the one before; return its end."""
        job, start_s = self.job, max(self.now, self.free_s)
        seconds = job["a_s"] + job["b_s"] * row["tokens"] + job["c_s"] * context
        self.free_s = start_s + seconds
        self.rows.append({**row, "formed_s": self.now, "end_s": self.free_s})
        return self.free_s

    def received(self, req: int, *, is_last: bool) -> None:
        """Record a request's token; the last one sends the request's successor."""
        if self.times["first_token_s"][req] < 0.0:
            self.times["first_token_s"][req] = self.now
        if not is_last:
            return
        self.times["last_token_s"][req] = self.now
        self.release(req, self.now, on_dispatch=False)
        follower = self.followers.get(req)
        if follower is None and self.unreleased:
            follower = self.unreleased.popleft()
        if follower is not None:
            heapq.heappush(self.arriving, (self.now + self.requests["given_s"][follower], follower))

    def records(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a run and its columns of iterations and requests."""
        return {
            "options": options,
            "iterations": {name: [row[name] for row in self.rows] for name in self.rows[0]},
            "requests": {**self.times, **self.counts},
        }


def answer_jobs(serve: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Read jobs from the first file of the command line and write records to the second one."""
    jobs = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([serve(job) for job in jobs]))
