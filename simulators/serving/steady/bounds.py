"""Lower bounds on analytic metrics over a box of designs: interval arithmetic over the cycle.

In a box only the batch size and the tokens of an iteration vary. A step with less work takes no
longer, so each step is priced at the least work of any design in the box. With batch size `n`, `R`
rounds of which `C` are calm and `F` full of prompts, and a decode and a prompt iteration of `d` and
`p` seconds,

    cost   ~ pace / n             pace = C d + (R - C) p = R d + (R - C) (p - d)    if d <= p
                                  pace = R d - F (d - p)                          if d > p
    TTFT  >= backlog * pp * p + chunks * (pass of a prompt) + wait for a batch formed ahead
    TPOT  >= pp * (needed * d + others * p + stretched * (p - d)) / later

where each factor takes the end of its interval that minimises the product (Moore, "Interval
Analysis", 1966). `others` are iterations of whole prompts that neither a request nor its backlog
needs, `stretched = needed - C` the decodes that share a round with prompts. The monotone parts are

    whole prompts    prompts of an iteration rise with batch size and tokens
    chunks           decodes beside them rise with both; chunks of a prompt fall with tokens
    both             rounds rise with batch size and fall with tokens

In an open loop, latencies are bounded by a request alone on a replica, and throughput by the
arrival rate. Closed loops and speculative decoding are not bounded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.price import usd_per_mtok
from simulators.composition.price import stage_iteration
from simulators.core.columns import numbers, which
from simulators.core.jit import Floats, Ints
from simulators.serving.engine.limits import load_scheduler
from simulators.serving.prices.hardware import Hardware
from simulators.serving.row_groups import rows_of
from simulators.serving.steady.design import SteadyDesign, Verdicts, design_of
from simulators.serving.steady.iteration_times import (
    Iterations,
    Prices,
    ReplicaFamily,
    empty_prices,
    families_of,
    write_prices,
)
from simulators.serving.steady.queueing import EXPECTED_SHARE_BEFORE, power
from simulators.workload.llm.step import Step

Mask = NDArray[np.bool_]

RANGED = ("replicas", "max_batch", "scheduling.max_batch_tokens", "chunk_size")
"""Fields in which the points of a box may differ."""

BOUNDED = ("ttft_mean_s", "tpot_mean_s", "cost_usd_per_mtok")

ROUNDING = 1e-9
"""Relative margin for floating-point sums in a different order."""

MESSAGE_TOKENS = np.unique(np.rint(np.geomspace(1.0, 1 << 15, 2000)))
"""Tokens of a step at which collective times are sampled. On some GPUs a larger message takes less
time where the library changes its algorithm; all other times are monotone."""


@dataclass(frozen=True)
class Range:
    """Smallest and largest value of a quantity in each box."""

    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Lower bounds of the counts in the equations, per box."""

    rounds_per_request: Floats
    mixed_share: Floats  # share of the rounds in which a batch in flight has a prompt
    full_share: Floats  # upper bound of that in which all of them have
    chunks: Floats
    backlog: Floats
    others: Floats
    stretched: Floats


def steady_bounds(low: pa.RecordBatch, high: pa.RecordBatch) -> Mapping[str, Floats]:
    """Return lower bounds of the analytic metrics per box; infinite without a feasible point.

    `low` and `high` hold the smallest and largest values of the ranged fields of each box.
    """
    rows, verdicts, of_high = low.num_rows, Verdicts(low.num_rows), Verdicts(low.num_rows)
    families = families_of(low)
    best, most = design_of(low, families, verdicts), design_of(high, families, of_high)
    cramped = numbers(low, "pp") > best.max_num_seqs  # but a larger batch may fit
    cramped &= ~np.isnan(best.lengths.prompt)  # no batch helps prompts beyond the context
    possible = (verdicts.codes == 0) | cramped
    possible &= numbers(low, "pp") <= most.max_num_seqs
    station = best.station
    closed = np.isfinite(station.clients)
    drafted = (station.checked > 1.0) | (station.decodes < best.lengths.output - 1.0)
    known = possible & ~closed & ~drafted
    found = {name: np.where(possible, 0.0, np.inf) for name in BOUNDED}
    for chunked in (False, True):
        some = np.flatnonzero(known & (station.chunked == chunked))
        if some.size:
            box = _Box(rows_of(best, some), rows_of(most, some), families, some, rows)
            ttft_s, tpot_s, usd = box.least(*(_chunked(box) if chunked else _whole(box)))
            ttft_s += box.station.server_s * (1.0 - ROUNDING)
            for name, column in zip(BOUNDED, (ttft_s, tpot_s, usd), strict=True):
                found[name][some] = column
    return found


def ignored_limits(batch: pa.RecordBatch, steady: Mask) -> Mapping[str, Mask]:
    """Return, by field, the rows whose steady state is independent of that token limit.

    `chunk_size` applies to chunked prefill only, `max_batch_tokens` to whole prompts only.
    """
    chunked = which(batch, "scheduler", lambda name: load_scheduler(name).chunked)
    return {"chunk_size": steady & ~chunked, "scheduling.max_batch_tokens": steady & chunked}


@functools.lru_cache(maxsize=4096)
def max_collective_dip(hardware: Hardware) -> float:
    """Return twice the largest relative decrease of a step's time as its messages grow."""
    replica = hardware.replica
    step = Step(prefill_tokens=MESSAGE_TOKENS)
    messages = stage_iteration(replica, step, 0, ("collective",))
    sent_s = np.broadcast_to(np.asarray(messages.collective_s), MESSAGE_TOKENS.shape)
    dips_s = np.maximum.accumulate(sent_s) - sent_s
    if not dips_s.any():
        return 0.0
    whole_s = sent_s + np.asarray(stage_iteration(replica, step, 0, ("tokens",)).tokens_s)
    return 2.0 * float((dips_s / whole_s).max())


class _Box:
    """Boxes with one kind of scheduling, and lower bounds of their steps."""

    def __init__(
        self,
        best: SteadyDesign,
        most: SteadyDesign,
        families: list[ReplicaFamily],
        some: Ints,
        rows: int,
    ) -> None:
        self.design, self.families = best, families
        self.place = np.full(rows, -1)
        self.place[some] = np.arange(some.size)
        self.station, self.lengths = best.station, best.lengths
        self.open = ~np.isnan(best.station.rate)
        first = np.where(self.open, 1.0, np.maximum(best.station.max_batch_size, 1.0))
        self.batch_sizes = Range(first, np.maximum(most.station.max_batch_size, first))
        self.tokens = Range(best.station.tokens, most.station.tokens)
        one = self.batch_sizes.low == self.batch_sizes.high
        one &= self.tokens.low == self.tokens.high
        self.collective_dips = np.where(one, 0.0, self._collective_dips())
        self.margin = 1.0 - ROUNDING - self.collective_dips

    def _collective_dips(self) -> Floats:
        """Return the largest relative decrease of a step's time with more work, per box."""
        found = np.zeros(self.batch_sizes.low.size)
        for family in self.families:
            for pipeline in family.pipelines:
                where = self.place[pipeline.rows]
                if family.deployment and (where := where[where >= 0]).size:
                    found[where] = max_collective_dip(family.deployment.hardware)
        return found

    def least(self, terms: Terms, asked: Iterations) -> tuple[Floats, Floats, Floats]:
        """Return lower bounds of TTFT and TPOT in seconds, and of dollars per million tokens."""
        station, lengths, design = self.station, self.lengths, self.design
        prices = self._prices(asked)
        decode_s, prompt_s = prices.decode_pace_s, prices.prompt_pace_s
        longer_s = np.maximum(prompt_s - decode_s, 0.0)
        ttft_s = terms.chunks * prices.prompt_pass_s
        ttft_s += np.where(self.open, 0.0, terms.backlog * station.stages * prompt_s)
        needed, later = station.decodes, np.maximum(lengths.output - 1.0, 1.0)
        shared_s = terms.others * prompt_s + terms.stretched * longer_s
        tpot_s = needed * decode_s + np.where(self.open, 0.0, shared_s)
        tpot_s = np.where(self.open & ~station.chunked, 0.0, station.stages * tpot_s / later)
        tpot_s = np.where(lengths.output > 1.0, tpot_s, np.inf)
        round_s = decode_s + terms.mixed_share * longer_s
        round_s -= terms.full_share * np.maximum(decode_s - prompt_s, 0.0)
        formed_s = station.formed_ahead * station.stages * round_s
        formed_s += station.stream_s * station.stages * self.batch_sizes.low
        ttft_s += np.where(self.open, 0.0, formed_s)
        pace_s = terms.rounds_per_request * round_s
        per_s = design.replicas * np.where(self.open, station.rate, 1.0 / pace_s)
        size = design.gpus * design.replicas
        usd = usd_per_mtok(design.usd_per_gpu_hour, size, per_s * lengths.output)
        usd = np.where(np.isnan(usd), np.inf, usd)
        exact = np.where(self.open, 1.0 - ROUNDING, self.margin)
        return ttft_s * self.margin, tpot_s * self.margin, usd * exact

    def step(
        self, decodes: Floats, beside: Floats, prompts: Floats, tokens: Floats, kind: Ints
    ) -> Iterations:
        """Return the two iterations of each box: decodes alone, and prompts beside decodes.

        Rows of equal kind and number of prompts have equal numbers of tokens.
        """
        lengths = self.lengths
        found = lengths.found + lengths.prompt / 2.0
        return Iterations(
            decodes=decodes,
            keys=lengths.keys,
            prompt_decodes=beside,
            prompts=prompts,
            prompt_tokens=tokens,
            prompt_pairs=tokens / lengths.prompt * lengths.pairs,
            prompt_keys=prompts * found + tokens / 2.0,
            kind=kind,
        )

    def _prices(self, asked: Iterations) -> Prices:
        prices = empty_prices(self.batch_sizes.low.size)
        for family in self.families:
            members, replica = [], None
            for pipeline in family.pipelines:
                where = self.place[pipeline.rows]
                if pipeline.replica and (where := where[where >= 0]).size:
                    members.append((pipeline.replica.layout.pp, where))
                    replica = replica or pipeline.replica
            if replica:
                write_prices(prices, replica, asked, members)
        return prices


def _whole(box: _Box) -> tuple[Terms, Iterations]:
    """Return the cycle of boxes that prefill whole prompts before decodes."""
    lengths, needed, batch_sizes = box.lengths, box.station.decodes, box.batch_sizes
    most = _each(lambda t: np.maximum(1.0, np.floor(t / lengths.prompt)), box.tokens)
    decodes_per_request = np.maximum(needed, 1.0)
    freed = _each(lambda n: np.where(needed > 0.0, n / decodes_per_request, n), batch_sizes)
    prompts = Range(
        *(
            np.clip(np.rint(f), 1.0, np.minimum(m, np.maximum(1.0, np.floor(n))))
            for f, m, n in _ends(freed, most, batch_sizes)
        )
    )
    arriving_together = Range(*(1.0 + f * (1.0 - 1.0 / n) for f, n in _ends(freed, batch_sizes)))
    prefill_iterations = Range(batch_sizes.low / prompts.high, batch_sizes.high / prompts.low)
    before = Range(
        np.where(arriving_together.high > most.low, EXPECTED_SHARE_BEFORE, 1.0),
        np.where(arriving_together.low > most.high, EXPECTED_SHARE_BEFORE, 1.0),
    )
    most_prompts = Range(prompts.high, prompts.low)
    ends = _ends(arriving_together, before, most_prompts, prefill_iterations)
    backlog = Range(*(_backlog(needed, *each) for each in ends))
    most_calm = power(needed / (needed + prefill_iterations.low), box.station.stages)
    terms = Terms(
        rounds_per_request=needed / batch_sizes.high + 1.0 / prompts.high,
        mixed_share=1.0 - most_calm,
        full_share=power(1.0 - needed / (needed + prefill_iterations.high), box.station.stages),
        chunks=np.ones(needed.size),
        backlog=backlog.low,
        others=np.maximum(0.0, prefill_iterations.low - 1.0 - backlog.high),
        stretched=np.maximum(0.0, needed - (needed + prefill_iterations.low) * most_calm),
    )
    tokens, beside = prompts.low * lengths.prompt, np.zeros(needed.size)
    return terms, box.step(batch_sizes.low, beside, prompts.low, tokens, box.design.kind)


def _backlog(
    needed: Floats, together: Floats, before: Floats, prompts: Floats, prefills: Floats
) -> Floats:
    """Return the iterations that an admitted prompt waits for its prefill."""
    ahead = np.where(needed > 0.0, before * (together / prompts - 1.0), prefills - 1.0)
    return np.maximum(0.0, ahead)


def _chunked(box: _Box) -> tuple[Terms, Iterations]:
    """Return the cycle of boxes with chunked prefill beside decodes."""
    needed, prompt = box.station.decodes, box.lengths.prompt
    batch_sizes, most, need = box.batch_sizes, box.tokens, prompt + needed

    def chunks_of(n: Floats, t: Floats) -> Floats:
        decoding = np.minimum(np.minimum(n, t * needed / need), t - 1.0)
        return np.ceil(prompt / (t - decoding))

    chunks = Range(chunks_of(batch_sizes.low, most.high), chunks_of(batch_sizes.high, most.low))
    rounds = Range(
        np.maximum(needed + chunks.low, batch_sizes.low * need / most.high),
        np.maximum(needed + chunks.high, batch_sizes.high * need / most.low),
    )
    served = Range(  # requests of a round
        np.minimum(batch_sizes.low / (needed + chunks.high), most.low / need),
        np.minimum(batch_sizes.high / (needed + chunks.low), most.high / need),
    )
    decodes = _each(lambda each: each * needed, served)
    tokens = Range(
        np.minimum(most.low - decodes.high, prompt * np.maximum(1.0 / chunks.high, served.low)),
        np.minimum(most.high - decodes.low, prompt * np.maximum(1.0 / chunks.low, served.high)),
    )
    mixed = np.minimum(1.0, served.low * prompt / tokens.high)
    calm = power(1.0 - mixed, box.station.stages)
    terms = Terms(
        rounds_per_request=1.0 / served.high,
        mixed_share=1.0 - calm,
        full_share=power(np.minimum(1.0, served.high * prompt / tokens.low), box.station.stages),
        chunks=chunks.low,
        backlog=np.maximum(0.0, batch_sizes.low * need / most.high - needed - chunks.high),
        others=np.zeros(needed.size),
        stretched=np.maximum(0.0, needed - rounds.high * calm),
    )
    beside = decodes.low * (batch_sizes.low - 1.0) / batch_sizes.low
    prompts = np.maximum(1.0, tokens.low * chunks.low / prompt)
    alone = np.arange(needed.size)
    return terms, box.step(np.maximum(decodes.low, 1.0), beside, prompts, tokens.low, alone)


def _each(rises: Callable[[Floats], Floats], over: Range) -> Range:
    """Return the range of an increasing function over a range."""
    return Range(rises(over.low), rises(over.high))


def _ends(*ranges: Range) -> Iterator[tuple[Floats, ...]]:
    """Yield the low ends of some ranges, then the high ones."""
    yield tuple(each.low for each in ranges)
    yield tuple(each.high for each in ranges)
