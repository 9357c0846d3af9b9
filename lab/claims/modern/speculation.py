"""Speculative decoding: tokens of an iteration and what drafts speed up.

Speed-ups are those of decodes alone, `tokens x time of a plain pass / time of a drafted one`, as
the published ones at fixed batch sizes are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.claims.lines import at_most
from lab.fits.speculation.acceptance import mean_rates
from lab.tables.modern.speculation import (
    BY_POSITION,
    PER_STEP,
    measured_drafts,
    rates_by_position,
)
from lab.tables.rows import read_records
from simulators.core.contract import Check
from simulators.serving.deployment import deployment_of
from simulators.serving.point import EAGLE, NGRAM, ServingPoint
from simulators.serving.prices.batch_price import prices_of
from simulators.serving.simulator import simulate
from simulators.serving.speculation import acceptance
from simulators.serving.speculation.adaptive import drafted_s
from simulators.serving.speculation.drafter import drafter_of

CITED = "serving_modern/cited_single_numbers.parquet"
NEEDS = (BY_POSITION, PER_STEP, CITED)

BENCH = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    dtype="bf16",
    kv_dtype="bf16",
    scheduler="vllm_v1",
    speculation="eagle",
)
CONTEXT = 700.0
PUBLISHED: Mapping[int, Mapping[int, float]] = {
    3: {1: 1.77, 8: 1.71, 32: 1.56, 64: 1.44, 128: 1.30, 256: 1.18},
    5: {1: 1.96, 8: 1.84, 32: 1.56, 64: 1.37, 128: 1.17, 256: 1.02},
}
"""Speed-up by drafts and batch of that model, from the constants that SpecDecode-Bench's simulator
was given for its measured passes (2025), at 700 tokens of context."""


PAGE = replace(
    BENCH,
    scheduler="sglang",
    runtime="sglang",
    speculation="nothing",
    arrivals="closed",
    clients=1,
    requests=20,
    prompt_tokens=100,
    output_tokens=400,
)
PAGE_DRAFTS: Mapping[str, Mapping[str, Any]] = {
    "EAGLE-2": {"speculation": "eagle", "draft_tokens": 3, "draft_topk": 4, "draft_nodes": 16},
    "EAGLE-3": {"speculation": "eagle3", "draft_tokens": 5, "draft_topk": 8, "draft_nodes": 32},
}
"""One sequence of short questions, with the trees of the page's commands (SGLang documentation,
Speculative Decoding)."""

MANY = replace(PAGE, clients=64, requests=300)
"""The page of EAGLE-3's authors (Li et al., 2025, abstract): 64 sequences under SGLang."""
CLAIMED = 30.0
"""Percent: how long their chain is the abstract does not say; SGLang advises 3 drafts of one guess
(`advanced_features/speculative_decoding`)."""

NARROW = replace(PAGE, model="qwen3_8b", prompt_tokens=200, output_tokens=200, requests=40)
NARROW_DRAFTS: Mapping[str, Any] = {
    "dtype": "fp8",
    "speculation": "eagle3",
    "draft_tokens": 4,
    "draft_topk": 4,
    "draft_nodes": 16,
}
NARROW_ROWS = {
    1: "Qwen3-8B ShareGPT bs1: vLLM bf16 vs SGLang FP8+EAGLE3 (16 draft tokens)",
    2: "same bs2",
    4: "same bs4",
    8: "same bs8",
}
"""GPUStack's performance lab: vLLM in 16 bits, then SGLang in 8 with that tree; about the lengths
that its latencies and ShareGPT have."""

CROSSING = 32
BATCHES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96, 128, 256)
"""Near `CROSSING` five drafts lose to three by the published constants."""

PASS_MS, TOKEN_MS, KEY_MS = 5.886, 0.021, 39.3e-6
DRAFTING_MS, DRAFTED_MS, HOST_MS = 2.135, 84e-5, 1.207
"""Those constants: a pass, and for each token and each key; the drafts, and for each; the host."""

LONGEST_RUN = 1000
"""Positions to which the last rate is carried on."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors of tokens of an iteration and of speed-ups, and where five drafts lose."""
    yield from _tokens(reference)
    yield from _cited(reference)
    yield from _cited_ratios(reference)
    ours = {
        drafts: {batch: speed_up(BENCH, drafts, batch, CONTEXT) for batch in BATCHES}
        for drafts in PUBLISHED
    }
    off = [
        100.0 * (ours[drafts][batch] / published - 1.0)
        for drafts, row in PUBLISHED.items()
        for batch, published in row.items()
    ]
    yield at_most(
        "speculation, speed-up of EAGLE by batch and drafts",
        float(np.mean(np.abs(off))),
        15.0,
        len(off),
        f"bias {np.mean(off):+.1f}; Llama-3.1-8B on H100, batches of 1 to 256",
    )
    published = sorted(PUBLISHED[3])
    rises = sum(
        int(np.sum(np.diff([row[batch] for batch in published]) > 0.0)) for row in ours.values()
    )
    yield at_most(
        "speculation, larger batches that gain more from drafts",
        float(rises),
        0.0,
        len(off),
        "of neighbouring batches; published none",
        unit="",
    )
    crossing = next(batch for batch in BATCHES if ours[5][batch] < ours[3][batch])
    yield at_most(
        "speculation, batch from which five drafts lose to three",
        float(crossing),
        None,
        1,
        "where each takes a pass of its own",
        unit="",
    )
    alike, theirs = (
        next(batch for batch in range(1, BATCHES[-1]) if loses(batch))
        for loses in (_loses_alike, _loses_published)
    )
    yield at_most(
        "speculation, batch from which five drafts lose to three drafted in the same time",
        float(alike),
        2.0 * CROSSING,
        1,
        f"published near {CROSSING}; from {theirs} by the constants that it was found with",
        unit="",
    )


def _cited(reference: Path) -> Iterator[Check]:
    """Yield how fast one sequence is decoded under SGLang, as its page says.

    The acceptance is that of other prompts and, of EAGLE-3, of other models.
    """
    cited = {row["setting"]: row for row in read_records(reference / CITED)}
    plain_s = _tpot_s(PAGE)
    for name, drafts in PAGE_DRAFTS.items():
        row = cited[f"Llama-3.1-8B MT-bench bs1 SGLang: none vs {name}"]
        ours_s = _tpot_s(replace(PAGE, **drafts))
        yield at_most(
            f"speculation, tokens per second of one sequence under SGLang, {name}",
            _off(1.0 / ours_s, row["treated"]),
            15.0,
            1,
            f"{1.0 / ours_s:.0f} of {row['treated']:.0f}; undrafted {1.0 / plain_s:.0f} of "
            f"{row['baseline']:.0f}",
        )


def _cited_ratios(reference: Path) -> Iterator[Check]:
    """Yield how much more EAGLE-3 brings with many sequences, and with narrow weights besides."""
    cited = {row["setting"]: row for row in read_records(reference / CITED)}
    rates = [simulate(p).tokens_per_s for p in (MANY, replace(MANY, speculation="eagle3"))]
    gain, claimed = rates[1] / rates[0], cited["EAGLE-3 SGLang bs64 throughput ratio"]["treated"]
    yield at_most(
        "speculation, throughput of 64 sequences by EAGLE-3 under SGLang",
        _off(gain, claimed),
        CLAIMED,
        1,
        f"x{gain:.2f} of x{claimed:.2f}, which is a claim",
    )
    plain = replace(NARROW, scheduler="vllm_v1", runtime="vllm")
    errors, said = [], []
    for clients, setting in NARROW_ROWS.items():
        both = [replace(p, clients=clients) for p in (plain, replace(NARROW, **NARROW_DRAFTS))]
        before_s, after_s = (simulate(point).e2e_mean_s for point in both)
        assert before_s is not None
        assert after_s is not None
        theirs = cited[setting]["baseline"] / cited[setting]["treated"]
        errors.append(_off(before_s / after_s, theirs))
        said.append(f"x{before_s / after_s:.2f} of x{theirs:.2f} at {clients}")
    yield at_most(
        "speculation, latency by EAGLE-3 and 8-bit weights under SGLang",
        float(np.mean(errors)),
        15.0,
        len(errors),
        ", ".join(said),
    )


def _tpot_s(point: ServingPoint) -> float:
    found = simulate(point).tpot_mean_s
    assert found is not None
    return found


def _loses_alike(batch: int) -> bool:
    """Return whether five drafts lose to three at a batch if drafting either takes as long.

    So have the published constants it: 2.1 ms, whatever is drafted. Here that is three passes.
    """
    three, five = (replace(BENCH, draft_tokens=k) for k in (3, 5))
    checks_s = [pass_s(replace(p, speculation=NGRAM), batch, CONTEXT) for p in (three, five)]
    drafting_s = pass_s(three, batch, CONTEXT) - checks_s[0]
    return _loses([one + drafting_s for one in checks_s])


def _loses_published(batch: int) -> bool:
    """Return the same by the published constants."""
    drafting_ms = DRAFTING_MS + DRAFTED_MS * batch + HOST_MS + KEY_MS * CONTEXT * batch
    return _loses([PASS_MS + TOKEN_MS * batch * (1 + k) + drafting_ms for k in (3, 5)])


def _loses(times: Sequence[float]) -> bool:
    """Return whether five drafts bring fewer tokens in a time than three."""
    rates = [
        acceptance.tokens_per_step(acceptance.survival(EAGLE, "", k)) / one
        for k, one in zip((3, 5), times, strict=True)
    ]
    return rates[1] < rates[0]


def _tokens(reference: Path) -> Iterator[Check]:
    """Yield how far off tokens of an iteration are.

    A look-up in the text accepts runs of tokens, wherever in a run it begins: where drafts begun
    everywhere accept at least `j` with share `S_j`, a share `S_j - S_j+1` of tokens ends a run of
    `j` or more, and drafts of `k` cut runs into pieces of `k + 1`. Heads draft from states of their
    own, and are predicted from other prompts.
    """
    rows = list(measured_drafts(reference))
    rates = rates_by_position(reference)
    runs, heads = [], []
    for row in rows:
        if row.method == NGRAM:
            known = rates[NGRAM, row.group]
            longer = [known[-1]] * LONGEST_RUN
            ends = -np.diff(np.cumprod([1.0, *known, *longer]))
            runs += [_off(1.0 / ends[:: k + 1].sum(), t) for k, t in row.tokens.items()]
        elif row.method == EAGLE:
            others = [one for one in rows if one.method == EAGLE and one.group != row.group]
            ours = 1.0 + np.cumsum(np.cumprod(mean_rates(others)))
            heads += [_off(ours[k - 1], t) for k, t in row.tokens.items() if k <= ours.size]
    for name, errors in (
        ("n-gram, from rates by position", runs),
        ("EAGLE, from other prompts", heads),
    ):
        yield at_most(
            f"speculation, tokens of an iteration, {name}",
            float(np.mean(errors)),
            3.0,
            len(errors),
            f"worst {max(errors):.1f}",
        )


def _off(ours: float, theirs: float) -> float:
    return 100.0 * abs(float(ours) / theirs - 1.0)


def speed_up(point: ServingPoint, drafts: int, batch: int, context: float) -> float:
    """Return how much faster a batch decodes with drafts than without."""
    drafted = replace(point, draft_tokens=drafts)
    survival = acceptance.survival(point.speculation, point.acceptance, drafts)
    plain = pass_s(replace(point, draft_tokens=0), batch, context)
    tokens = acceptance.tokens_per_step(survival)
    return tokens * plain / pass_s(drafted, batch, context)


def pass_s(point: ServingPoint, batch: int, context: float) -> float:
    """Return the seconds of an iteration of decodes, with their drafts if there are any."""
    hardware = deployment_of(point).hardware
    drafter = drafter_of(point, hardware)
    table, price = prices_of(point, hardware, drafter)
    return drafted_s(table, price, float(batch), drafter.drafted if drafter else 0, context)
