"""Fit request lengths of workloads to traces, and acceptance rates of draft tokens.

`workloads.toml` names the traces; the error is that of the deciles of drawn lengths. An acceptance
rate is the mean over models, or over prompt sets where one model was measured, by method and
position. Its error is that of tokens per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, declared, settings
from lab.fits.methods import grouped, leave_one_out, quantile
from lab.tables.records import records
from simulators.core.jit import Floats, Ints
from simulators.evidence.intervals import COVERED
from simulators.serving.demand.requests import stream
from simulators.serving.demand.workloads import Distribution, Quantiles, Trace, Workload, load_trace

CONFIG = settings(__file__)

PROMPT_PROBABILITY = (*np.linspace(0.0, 0.98, 99), 0.985, 0.99, 0.995, 0.998, 0.999, 1.0)
OUTPUT_PROBABILITY = (*np.linspace(0.0, 0.95, 39), 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0)
"""Probabilities of the quantile tables, finer towards the tail, which has much of the mean."""


def fit_request_lengths(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the length tables of all workloads."""
    for name, trace in CONFIG.traces.items():
        yield _calibration(name, *_read_lengths(reference, name), tables=[trace])


def measured_request_lengths(measured: Path, device: str) -> Iterator[Calibration]:
    """Yield a workload of a user's own trace, named by `device` or the file."""
    trace = load_trace(str(measured))
    name, lengths = device or measured.stem, (trace.prompt_tokens, trace.output_tokens)
    file = Path("catalog", "workloads", f"{name}.toml")
    yield _calibration(name, *lengths, file=file, tables=[measured])


def _read_lengths(reference: Path, name: str) -> tuple[Ints, Ints]:
    trace: Trace = load_trace(str(reference / CONFIG.traces[name]))
    prompt, output = trace.prompt_tokens, trace.output_tokens
    if name != "sharegpt":
        return prompt, output
    kept = (np.minimum(prompt, output) >= CONFIG.least) & (prompt <= CONFIG.longest_prompt)
    kept &= prompt + output <= CONFIG.longest
    return prompt[kept], output[kept]


def workload_of(prompt: Ints, output: Ints, name: str) -> Workload:
    """Return the quantile tables of measured lengths; ranges of the prompt have equal shares."""
    inner = np.quantile(prompt, np.linspace(0.0, 1.0, CONFIG.ranges + 1)[1:-1])
    ends = [*sorted({float(np.floor(end)) for end in inner}), np.inf]
    which = np.searchsorted(ends[:-1], prompt, side="left")
    return Workload(
        name=name,
        prompt=_quantiles(prompt, PROMPT_PROBABILITY),
        prompt_up_to=tuple(ends),
        output=tuple(_quantiles(output[which == i], OUTPUT_PROBABILITY) for i in range(len(ends))),
    )


def held_out_error(workload: Workload, prompt: Ints, output: Ints) -> float:
    """Return the mean relative error of the deciles of lengths drawn from the tables."""
    drawn = workload.draw(stream(0, "held out").random((200_000, 2)))
    deciles = np.linspace(0.1, 0.9, 9)
    pairs = zip((*drawn, sum(drawn)), (prompt, output, prompt + output), strict=True)
    errors = [np.quantile(one, deciles) / np.quantile(other, deciles) - 1.0 for one, other in pairs]
    return float(np.mean(np.abs(errors)))


def _calibration(name: str, prompt: Ints, output: Ints, **fields: Any) -> Calibration:
    kept = np.arange(prompt.size) % CONFIG.hold_out != CONFIG.hold_out - 1
    workload = workload_of(prompt[kept], output[kept], name)
    outputs = []
    for end, table in zip(workload.prompt_up_to, workload.output, strict=True):
        limit = {"prompt_up_to": int(end)} if end < np.inf else {}
        outputs.append({**limit, **_quantile_table(table)})
    return declared(
        "request_lengths",
        name=name,
        **fields,
        content={"prompt": _quantile_table(workload.prompt), "output": outputs},
        rows=int(kept.sum()),
        errors=held_out_error(workload, prompt[~kept], output[~kept]),
    )


def _quantiles(tokens: Ints, probability: Sequence[float]) -> Quantiles:
    values = np.quantile(tokens, probability).round(1).tolist()
    return Quantiles(tokens=tuple(values), probability=tuple(np.round(probability, 4).tolist()))


def _quantile_table(table: Distribution) -> dict[str, Any]:
    assert isinstance(table, Quantiles)  # `workload_of` makes no others
    return {"probability": table.probability, "tokens": table.tokens}


@dataclass(frozen=True)
class Drafts:
    """Acceptance of a drafting method for a model or a set of prompts."""

    method: str
    group: str  # model or set of prompts, held out together
    tokens: Mapping[int, float]  # per iteration, by number of draft tokens

    @property
    def rates(self) -> tuple[float, ...]:
        """Acceptance rates by position that give these tokens, interpolated between counts.

        >>> [round(rate, 6) for rate in Drafts("", "", {1: 1.8, 2: 2.2}).rates]
        [0.8, 0.5]
        """
        counts = sorted(self.tokens)
        every = np.arange(1, counts[-1] + 1)
        tokens = np.interp(every, counts, [self.tokens[count] for count in counts])
        reached, rates = 1.0, []
        for more in np.diff(tokens, prepend=1.0).tolist():
            kept = min(max(more, 0.0), reached)
            rates.append(kept / reached if reached else 0.0)
            reached = kept
        return tuple(rates)


def measured_drafts(reference: Path) -> Iterator[Drafts]:
    """Yield tokens per iteration by number of drafts, for each set of prompts and each model."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in records(reference, "tokens_per_step"):
        found.setdefault((row.proposer, row.dataset, ""), {})[row.k] = row.tokens_per_step
    for row in records(reference, "acceptance_length"):
        mine = found.setdefault((row.method, row.model, row.path + row.mode), {})
        mine[row.num_speculative_tokens] = row.acceptance_length
    for (method, group, _), tokens in found.items():
        if method in CONFIG.draft_methods:
            yield Drafts(method, group, tokens)


def _rates_by_guess(reference: Path) -> Mapping[tuple[str, int], Mapping[int, float]]:
    rates: dict[tuple[str, int], dict[int, float]] = {}
    for row in records(reference, "medusa_heads"):
        rates.setdefault((row.vicuna_size, row.head), {})[row.top] = row.topk_accuracy
    return rates


def fit_acceptance(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the rates of all methods."""
    rows = list(measured_drafts(reference))
    rates: dict[str, Sequence[float]] = {}
    ratios: list[float] = []
    for method in CONFIG.draft_methods:
        mine = [row for row in rows if row.method == method]
        rates[method] = mean_rates(mine)
        for out, others in leave_one_out(mine, lambda row: row.group, mean_rates):
            for row in out if others else ():
                ours, theirs = _tokens(others), _tokens(row.rates)
                count = min(ours.size, theirs.size)
                ratios += (ours[:count] / theirs[:count]).tolist()
    growth = round(float(np.mean(growths(reference))), 3)
    heads = grouped(_rates_by_guess(reference).items(), lambda item: item[0][1])
    rates["medusa"] = [
        float(np.mean([first_guess(guesses, growth) for _, guesses in heads[head]]))
        for head in sorted(heads)
    ]
    yield declared(
        "acceptance",
        content={
            "rates": rates,
            "times": {"ends": quantile(ratios, COVERED)},
            "ranks": {"growth": growth},
        },
        rows=sum(len(row.rates) for row in rows),
        errors=np.array(ratios) - 1.0,
    )


def mean_rates(rows: Sequence[Drafts]) -> tuple[float, ...]:
    """Return the mean rate at each position: the mean over groups of the means within each."""
    groups = grouped(rows, lambda row: row.group).values()
    means = []
    for position in range(CONFIG.most_drafts):
        at = [[row.rates[position] for row in some if len(row.rates) > position] for some in groups]
        if any(at):
            means.append(float(np.mean([np.mean(rates) for rates in at if rates])))
    return tuple(means)


def first_guess(guesses: Mapping[int, float], growth: float) -> float:
    """Return the acceptance rate of one guess, from the rate of the fewest measured guesses.

    >>> round(first_guess({2: 0.5}, 1.0), 3)
    0.333
    """
    rank, among = min(guesses.items())
    odds = among / (1.0 - among) / rank**growth
    return float(odds / (1.0 + odds))


def growths(reference: Path) -> list[float]:
    """Return the exponents of the odds of acceptance over guesses, of heads with a first guess."""
    found = []
    for among in _rates_by_guess(reference).values():
        odds = {rank: share / (1.0 - share) for rank, share in among.items()}
        if 1 in odds:
            found += [np.log(odds[r] / odds[1]) / np.log(r) for r in odds if r > 1]
    return found


def _tokens(rates: Sequence[float]) -> Floats:
    return np.asarray(1.0 + np.cumsum(np.cumprod(rates[: CONFIG.most_drafts])))
