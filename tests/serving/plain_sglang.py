"""Plain-Python reading of SGLang's scheduler, without any shortcut.

Follows `get_next_batch_to_run`, `PrefillAdder` and `ScheduleBatch.retract_decode` of SGLang 0.5.23
without overlap, prefix cache and mixed chunks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto


@dataclass(frozen=True, kw_only=True)
class Options:
    """SGLang's options by their names; `pages` of the KV cache."""

    max_running_requests: int
    chunked_prefill_size: int
    page_size: int
    pages: int
    ignore_eos: bool = False
    schedule_conservativeness: float = 1.0


@dataclass(eq=False)
class Request:
    """A request; `written` output tokens are known, `computed` tokens hold KV pages."""

    arrival_s: float
    prompt: int
    output: int
    written: int = 0
    computed: int = 0
    pages: int = 0
    retractions: int = 0
    times: list[float] = field(default_factory=lambda: [-1.0, -1.0, -1.0])

    @property
    def extend(self) -> int:
        return self.prompt + self.written - self.computed


class Result(Enum):
    CONTINUE = auto()
    NO_TOKEN = auto()
    OTHER = auto()


class Adder:
    """`PrefillAdder` with its budgets of one pass."""

    def __init__(self, engine: PlainScheduler) -> None:
        self.options, self.running = engine.options, engine.running
        self.ratio = 1.0 if self.options.ignore_eos else engine.ratio
        self.available = engine.free * self.options.page_size
        self.chunk = self.options.chunked_prefill_size
        left = (min(one.output - one.written, 4096) for one in engine.running)
        self.total_offset = sum(rest * self.ratio for rest in left)
        self.current_offset = 0
        self.added: list[tuple[Request, int]] = []
        self.partial: Request | None = None
        self.states: list[tuple[float, int]] | None = None

    def ceil(self, tokens: int) -> int:
        return -(-tokens // self.options.page_size) * self.options.page_size

    def state(self) -> Result:
        if min(self.available - self.total_offset, self.available - self.current_offset) <= 0:
            return Result.NO_TOKEN
        return Result.OTHER if self.chunk <= 0 else Result.CONTINUE

    def commit(self, one: Request, tokens: int) -> Result:
        is_whole = tokens == one.extend
        self.added.append((one, tokens))
        self.partial = self.partial if is_whole else one
        immediate = self.ceil(tokens) + self.options.page_size
        self.total_offset += immediate + (min(one.output, 4096) if is_whole else 0)
        self.current_offset += immediate
        self.chunk -= self.ceil(tokens)
        return self.state()

    def add_chunked(self, one: Request) -> None:
        rest = min(self.chunk, int(self.available - self.total_offset))
        self.commit(one, min(one.extend, rest if rest > 0 else self.chunk))

    def add(self, one: Request) -> Result:
        if self.options.ignore_eos:
            return self.add_ignoring_eos(one)
        longest = min(one.output - one.written, 4096)
        if one.extend + longest + self.options.page_size >= self.available - self.total_offset:
            return Result.NO_TOKEN
        if self.ceil(one.extend) <= self.chunk:
            return self.commit(one, one.extend)
        tokens = self.chunk // self.options.page_size * self.options.page_size
        return self.commit(one, tokens) if tokens > 0 else Result.OTHER

    def add_ignoring_eos(self, one: Request) -> Result:
        paged = self.ceil(one.extend) + self.options.page_size
        free = self.available - self.current_offset
        if paged > min(free, self.available - self.total_offset):
            return Result.NO_TOKEN
        new = (one.output - one.written, one.prompt + one.written)
        if self.states is None:
            others = [*self.running, *(added for added, _ in self.added)]
            states = [(r.output - r.written, r.prompt + r.written) for r in others]
            self.states = sorted([new, *states], key=lambda state: state[0])
        else:
            i = 0
            for i in range(len(self.states)):
                if new[0] <= self.states[i][0]:
                    break
            self.states.insert(i, new)
        freed = 0
        for i, (left, occupied) in enumerate(self.states):
            count = len(self.states) - i
            if free - paged + freed - left * count <= count:
                return Result.NO_TOKEN
            freed += occupied
        if one.extend <= self.chunk:
            return self.commit(one, one.extend)
        return self.commit(one, self.chunk) if self.chunk > 0 else Result.OTHER


class PlainScheduler:
    """The queue, the batches and the page pool of one engine."""

    def __init__(self, options: Options) -> None:
        self.options, self.free = options, options.pages
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.chunked: Request | None = None
        self.is_full = False
        self.first = min(0.7 * options.schedule_conservativeness, 1.0)
        self.ratio = self.first

    def allocate(self, one: Request, tokens: int) -> None:
        one.computed += tokens
        pages = -(-one.computed // self.options.page_size)
        self.free -= pages - one.pages
        one.pages = pages
        assert self.free >= 0

    def release(self, one: Request) -> None:
        self.free += one.pages
        one.pages = one.computed = 0

    def prefill(self) -> list[tuple[Request, int]]:
        if not self.running:
            self.is_full = False
        slots = self.options.max_running_requests - len(self.running)
        if self.chunked is None and (self.is_full or not self.waiting or slots <= 0):
            self.is_full |= slots <= 0 and bool(self.waiting)
            return []
        adder = Adder(self)
        if self.chunked is not None:
            adder.add_chunked(self.chunked)
        for one in list(self.waiting):
            if adder.state() is Result.OTHER:
                break
            self.is_full |= len(adder.added) >= slots
            if self.is_full:
                break
            result = adder.add(one)
            if result is Result.NO_TOKEN:
                self.is_full = bool(adder.added or self.running)
            if result is not Result.CONTINUE:
                break
        self.chunked = adder.partial
        for one, tokens in adder.added:
            if one in self.waiting:
                self.waiting.remove(one)
            self.allocate(one, tokens)
        return adder.added

    def decode(self) -> list[tuple[Request, int]]:
        if not self.fits(self.running):
            self.retract()
        elif self.running:
            last = self.first * 0.14
            self.ratio = max(self.ratio - (self.first - last) / 600, last)
        for one in self.running:
            self.allocate(one, 1)
        return [(one, 1) for one in self.running]

    def fits(self, requests: list[Request]) -> bool:
        pages = sum(one.computed % self.options.page_size == 0 for one in requests)
        return pages <= self.free

    def retract(self) -> None:
        kept = sorted(self.running, key=lambda one: (one.written, -one.prompt), reverse=True)
        while not self.fits(kept):
            victim = kept.pop()
            self.release(victim)
            victim.retractions += 1
            self.waiting.append(victim)
        self.running = kept
        self.is_full = False
        written = sum(one.written for one in kept) + 20 * len(kept)
        self.ratio = min(1.0, written / (sum(one.output for one in kept) + 1))

    def finish(self, batch: list[tuple[Request, int]], now: float, *, is_prefill: bool) -> None:
        if is_prefill and not self.running:
            self.is_full = False
        for one, _ in batch:
            if one is self.chunked:
                self.is_full = False
                continue
            one.written += 1
            one.times[1] = now if one.times[1] < 0.0 else one.times[1]
            if one.written == one.output:
                one.times[2] = now
                self.release(one)
                self.is_full = False
            elif is_prefill:
                self.running.append(one)
        self.running = [one for one in self.running if one.written < one.output]


def simulate(
    requests: list[Request], options: Options, price: tuple[float, float]
) -> list[tuple[float, ...]]:
    """Serve all requests; return a row per iteration: formed_s, end_s and sums of the batch."""
    engine, arriving, rows, now = PlainScheduler(options), deque(requests), [], 0.0
    while arriving or engine.waiting or engine.running or engine.chunked:
        while arriving and arriving[0].arrival_s <= now:
            engine.waiting.append(arriving.popleft())
        batch = engine.prefill()
        is_prefill = bool(batch)
        batch = batch or engine.decode()
        if not batch:
            engine.ratio = engine.first
            now = arriving[0].arrival_s
            continue
        tokens = sum(new for _, new in batch)
        for one, _ in batch:
            one.times[0] = now if one.times[0] < 0.0 else one.times[0]
        end_s = now + (price[0] + price[1] * tokens)
        held = options.pages - engine.free
        rows.append((now, end_s, len(batch), tokens, len(engine.waiting), held))
        now = end_s
        engine.finish(batch, now, is_prefill=is_prefill)
    return rows
