"""Screening of `ask` by steady states: is the answer that of exhaustive simulation, at which cost?

Questions are drawn by a seed: model, one or two GPUs, engine, lengths, rate, deadlines, options.
`ask` answers each; then all designs that cost at least one percent less than the answer are
simulated (all designs, if there is no answer), so a better design would be found. The cheapest
design counts, though `ask` prefers one with more measured evidence. The iterations of an exhaustive
search are estimated from a random sample of all designs of the space.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import polars as pl

from planning.questions.serving import QUESTIONS
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import load_prices
from simulators.core.checks import Check, print_checks
from simulators.core.contract import load_simulator
from sweeper.commands.ask.probability import SloProbability
from sweeper.commands.ask.question import answer_to, parsed
from sweeper.query.pareto import qualifying
from sweeper.samplers.random import in_blocks
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.space.points import Span
from sweeper.sweep import Sweep

MODELS = ("llama3_1_8b", "qwen3_14b", "qwen3_30b", "gpt_oss_20b", "qwen3_32b", "llama3_1_70b")
GPUS = ("h100_sxm", "l40s", "a100_sxm", "h200_sxm", "h100_sxm,l40s", "a100_sxm,h200_sxm")
ENGINES = ("vllm", "sglang", "trtllm")
LENGTHS = ("", "", "--isl 1024 --osl 128", "--isl 256 --osl 512", "--isl 4096 --osl 64")
"""Chats (empty), or drawn around these means."""
RATES, TTFTS, TPOTS = (1, 2, 4, 8, 16), ("500ms", "1s", "2s", "4s"), ("30ms", "50ms", "100ms")
OPTIONS = ("", "--chunk-size 2048,8192", "--router least_outstanding", "--percentile 50")
MOST_GPUS, REQUESTS = (4, 4, 8), (150, 300)
SAMPLED = 16
"""Designs by which the iterations of an exhaustive search are estimated."""
WITHIN, SHARE = 0.01, 15.0
"""Largest excess of the cost, and largest share of the iterations in percent."""


def main() -> None:
    """Print the excess of the costs and the share of the iterations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--verbose", action="store_true", help="print a line per question")
    chosen = parser.parse_args()
    found = list(measured(chosen.questions, verbose=chosen.verbose))
    worst = max((one.excess for one in found), default=0.0)
    equal = sum(one.excess <= WITHIN for one in found)
    share = 100.0 * sum(o.iterations for o in found) / max(1.0, sum(o.exhaustive for o in found))
    rows = len(found)
    checks = [
        Check("questions with an answer", float(sum(one.is_found for one in found)), rows=rows),
        Check("answers within 1 % of the cheapest design", float(equal), "", rows, equal == rows),
        Check("largest excess of a cost", 100.0 * worst, "%", 1.0, worst <= WITHIN, rows),
        Check("share of the iterations", share, "%", SHARE, share <= SHARE, rows),
    ]
    print_checks(checks, as_json=chosen.json)


@dataclasses.dataclass(frozen=True)
class Screening:
    """One question: relative excess of the cost over that of the best design, and iterations."""

    is_found: bool
    excess: float
    iterations: float
    exhaustive: float  # estimated


def question(number: int) -> str:
    """Return the flags of a question, drawn by its number."""
    random = np.random.default_rng((49, number))

    def draw(values: tuple[object, ...]) -> str:
        return str(values[random.integers(len(values))])

    words = f"--model {draw(MODELS)} --gpu {draw(GPUS)} --engine {draw(ENGINES)} {draw(LENGTHS)}"
    words += f" --qps {draw(RATES)} --ttft {draw(TTFTS)} --tpot {draw(TPOTS)} {draw(OPTIONS)}"
    return f"{words} --gpus {draw(MOST_GPUS)} --requests {draw(REQUESTS)} --run-with inline"


def measured(count: int, *, verbose: bool = False) -> Iterator[Screening]:
    """Yield the result of each of `count` questions."""
    for number in range(count):
        words, started_s = question(number), time.process_time()
        with tempfile.TemporaryDirectory() as folder, redirect_stderr(StringIO()):
            result = screened([*words.split(), "--outputs", folder], f"{folder}/all", seed=number)
        if verbose:
            print(words, result, f"{time.process_time() - started_s:.1f} CPU-s", flush=True)
        yield result


def screened(words: list[str], folder: str, *, seed: int = 0) -> Screening:
    """Answer a question and simulate all cheaper designs."""
    with redirect_stdout(StringIO()):
        answer = answer_to(words)
    chosen, question = parsed(QUESTIONS, words)
    slo = SloProbability(question, chosen.confidence, chosen.band)
    prices = load_prices(question.prices[0])
    gpus = {gpu for grid in question.space["union"] for gpu in grid["gpu"]}
    usd_of = {gpu: prices.usd_per_gpu_hour(load_gpu(gpu)) for gpu in sorted(gpus)}

    def cheapest(rows: pl.DataFrame) -> float:
        met = rows.filter(slo.misses(rows) <= 1.0) if rows.height else rows
        gpus = met.select("gpu", "gpus").iter_rows()
        return min((usd_of[gpu] * count for gpu, count in gpus), default=math.inf)

    cost = cheapest(qualifying(answer.last.results).collect())
    rules = list(question.space["constraints"])
    if cost < math.inf:
        limits = {gpu: (1.0 - WITHIN) * cost / usd for gpu, usd in usd_of.items()}
        less = (f"(gpu = '{gpu}' AND gpus < {most})" for gpu, most in limits.items())
        rules.append(" OR ".join(less))
    space, whole = space_of({**question.space, "constraints": rules}), space_of(question.space)
    best = cost
    if space.size > sum(space.removed().values()):
        with redirect_stdout(StringIO()):
            run = Sweep.of(space, outputs=folder, engine="inline").run()
        best = min(best, cheapest(qualifying(run).collect()))
    iterations = answer.last.results.select("iterations").collect()["iterations"].sum()
    excess = 0.0 if best == cost else cost / best - 1.0
    return Screening(cost < math.inf, excess, float(iterations), _exhaustive(whole, seed))


def _exhaustive(space: DesignSpace, seed: int) -> float:
    """Return the estimated iterations of all designs, from some of them drawn at random."""
    kept = space.kept(Span(0, len(space)))
    every = np.arange(len(space)) if kept is None else np.flatnonzero(kept)
    drawn = np.random.default_rng(seed).choice(every, min(SAMPLED, len(every)), replace=False)
    simulator, total = load_simulator(space.simulator), 0.0
    for block in in_blocks(np.sort(drawn)):
        found = simulator.evaluate(space.batch(block))
        total += float(np.nansum(found["iterations"].to_numpy(zero_copy_only=False)))
    return total / len(drawn) * len(every)


if __name__ == "__main__":
    main()
