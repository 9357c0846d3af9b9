"""Plain-Python reading of vLLM's scheduler, without any shortcut.

Follows `Scheduler.schedule`, `AsyncScheduler` and `EngineCore.step_with_batch_queue` of vLLM 0.32
for one full-attention group without a prefix cache.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Options:
    """vLLM's options by their names; `accepts` is a cycle of accepted drafts per request."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    blocks: int
    watermark: float = 0.0
    async_scheduling: bool = False
    scheduler_reserve_full_isl: bool = False
    long_prefill_token_threshold: int = 0
    num_speculative_tokens: int = 0
    num_lookahead_tokens: int = 0
    accepts: tuple[int, ...] = (0,)


@dataclass(eq=False)
class Request:
    """A request; `tokens` are known, `computed` includes batches in flight."""

    arrival_s: float
    prompt: int
    output: int
    tokens: int = 0
    computed: int = 0
    placeholders: int = 0
    drafts: int = 0
    blocks: int = 0
    verified: int = 0
    preemptions: int = 0
    is_stale: bool = False
    is_done: bool = False
    times: list[float] = field(default_factory=lambda: [-1.0, -1.0, -1.0])


@dataclass
class Batch:
    """An iteration: scheduled tokens, draft tokens and whether each request gets an output."""

    members: list[tuple[Request, int, int, bool]]
    row: tuple[float, ...] = ()
    end_s: float = 0.0


class PlainScheduler:
    """The queues and the block pool of one engine."""

    def __init__(self, options: Options, price: tuple[float, float]) -> None:
        self.options, self.price = options, price
        self.free = options.blocks
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.options.block_size)

    def preempt(self, request: Request) -> None:
        self.free += request.blocks
        request.is_stale = request.placeholders > 0
        request.blocks = request.computed = request.placeholders = request.drafts = 0
        request.preemptions += 1
        self.waiting.appendleft(request)

    def allocate(self, request: Request, tokens: int, spare: int = 0) -> bool:
        needed = max(0, self.blocks_for(tokens) - request.blocks)
        if needed + spare > self.free:
            return False
        self.free -= needed
        request.blocks += needed
        return True

    def schedule(self) -> list[tuple[Request, int, int, bool]]:
        options, scheduled = self.options, []
        budget, preempted = options.max_num_batched_tokens, False
        limit = options.long_prefill_token_threshold
        if limit == 0 or len(self.running) + len(self.waiting) == 1:
            limit = options.max_num_batched_tokens
        place = 0
        while place < len(self.running) and budget > 0:
            one = self.running[place]
            ends = one.computed + 2 - one.placeholders >= one.prompt + one.output
            new = min(one.tokens + one.drafts + one.placeholders - one.computed, limit, budget)
            if (one.placeholders > 0 and ends) or new == 0:
                place += 1
                continue
            while not self.allocate(one, one.computed + new + options.num_lookahead_tokens):
                victim = self.running.pop()
                self.preempt(victim)
                preempted = True
                if victim is one:
                    break
            if one.blocks == 0:
                break
            drafts = max(0, new + one.computed - one.tokens - one.placeholders)
            scheduled.append((one, new, drafts))
            budget -= new
            place += 1
        while not preempted and self.waiting and budget > 0:
            if len(self.running) == options.max_num_seqs:
                break
            one = self.waiting[0]
            new = min(one.tokens, limit, budget)
            spare = int(options.watermark * options.blocks) if self.running else 0
            full = self.blocks_for(one.tokens) if options.scheduler_reserve_full_isl else 0
            if full + spare > self.free:
                break
            if not self.allocate(one, new + options.num_lookahead_tokens, spare):
                break
            self.running.append(self.waiting.popleft())
            scheduled.append((one, new, 0))
            budget -= new
        members = []
        for one, new, drafts in scheduled:
            one.computed += new
            emits = one.computed >= one.tokens + one.placeholders
            if options.async_scheduling and emits:
                one.placeholders += 1 + drafts
                one.drafts = options.num_speculative_tokens
            members.append((one, new, drafts, emits))
        return members

    def form(self, now: float, free_s: float) -> Batch:
        members = self.schedule()
        tokens = sum(new for _, new, _, _ in members)
        for one, _, _, _ in members:
            one.times[0] = now if one.times[0] < 0.0 else one.times[0]
        base_s, token_s = self.price
        end_s = max(now, free_s) + base_s + token_s * tokens
        held = self.options.blocks - self.free
        return Batch(members, (now, end_s, len(members), tokens, len(self.waiting), held), end_s)

    def finish(self, batch: Batch) -> None:
        for one, _, drafts, emits in batch.members:
            if not emits or one.is_done:
                continue
            accepts = self.options.accepts
            accepted = min(drafts, accepts[one.verified % len(accepts)])
            one.verified += drafts > 0
            total = one.prompt + one.output
            received = min(1 + accepted, total - one.tokens)
            one.tokens += received
            if one.is_stale:
                one.is_stale = False
            else:
                one.computed -= drafts - accepted
                if self.options.async_scheduling:
                    one.placeholders -= drafts - accepted + received
                else:
                    one.drafts = self.options.num_speculative_tokens
            one.times[1] = batch.end_s if one.times[1] < 0.0 else one.times[1]
            if one.tokens == total:
                one.is_done, one.times[2] = True, batch.end_s
                self.free += one.blocks
                one.blocks = 0
                (self.running if one in self.running else self.waiting).remove(one)


def simulate(
    requests: list[Request], options: Options, price: tuple[float, float]
) -> list[tuple[float, ...]]:
    """Serve all requests; return a row per iteration: formed_s, end_s and sums of the batch."""
    engine, arriving = PlainScheduler(options, price), deque(requests)
    in_flight: deque[Batch] = deque()
    depth, rows, now, free_s = 1 + options.async_scheduling, [], 0.0, 0.0
    for one in requests:
        one.tokens = one.prompt
    while arriving or engine.waiting or engine.running or in_flight:
        while arriving and arriving[0].arrival_s <= now:
            engine.waiting.append(arriving.popleft())
        if len(in_flight) < depth:
            batch = engine.form(now, free_s)
            if batch.members:
                in_flight.append(batch)
                rows.append(batch.row)
                free_s = batch.end_s
                continue
        if in_flight:
            batch = in_flight.popleft()
            now = batch.end_s
            engine.finish(batch)
        else:
            now = arriving[0].arrival_s
    return rows
