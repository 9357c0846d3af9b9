"""Share of the front found by searches, compared with full grids and random sampling.

The flagship space is evaluated once; searches are replayed over the stored rows. Shares are of the
hypervolume of the full front, with a reference point 10 % beyond the worst values, averaged over
scenarios.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from simulators.core.checks import Check, print_checks
from sweeper.commands.run import requested_sweep
from sweeper.query.fronts import distinct_front, hypervolume
from sweeper.query.pareto import minimised, pareto_front
from sweeper.samplers import Goal, load_sampler
from sweeper.samplers._search_driver import as_sampler, scenario_numbers
from sweeper.samplers.halving import cheap_metrics
from sweeper.space.points import Index, Mask, numbers
from sweeper.space.sql import parsed
from sweeper.sweep import Sweep

SEEDS = (0, 1, 2)
FLAGSHIP = "llama70b_h100"
GPUS = "llm_gpus_grid"
BILLION = (
    "space.axes.model=llama3_1_70b",
    "space.axes.prompt_tokens=1024",
    "space.axes.output_tokens=256",
    "space.axes.max_batch=1..1024",
    "space.axes.scheduler=[vllm,sarathi]",
    "space.axes.chunk_size=128..8192 lin 64",
    "space.axes.scheduling.max_batch_tokens=2048..16384 lin 8",
)
"""Flags of the question about GPUs, precisions and parallelism: 1.7e9 designs."""
FIDELITIES = {
    "ttft_p99_s": "ttft_mean_s",
    "tpot_p99_s": "tpot_mean_s",
    "cost_usd_per_mtok": "cost_usd_per_mtok",
}
"""Metric of the fast fidelity that predicts an objective of the slow fidelity."""


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--outputs", help="where the flagship's rows are, or go")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checks = list(flagship(chosen.outputs or folder))
    print_checks(checks, as_json=chosen.json)


class Whole:
    """All rows of a space, over which searches are replayed."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.rows = sweep.store.scan().collect()
        self.index = sweep.space.index_of(self.rows)
        self.losses = minimised(self.rows, sweep.objectives)
        ok = self.rows["status"].cast(pl.String) == "ok"
        if sweep.where:
            ok &= self.rows.select(parsed(sweep.where, "where").fill_null(value=False)).to_series()
        self.met = ok.to_numpy()
        self.scenario = scenario_numbers(sweep.space, sweep.given, self.index)
        self.whole = [self._volume(scenario) for scenario in np.unique(self.scenario[self.met])]

    def _volume(self, scenario: int) -> tuple[Mask, list[float], float]:
        """Return the rows of a scenario, the reference point and the hypervolume of their front."""
        mine = self.met & (self.scenario == scenario)
        rows = self.losses[mine]
        bound = (rows[distinct_front(rows)[0]].max(axis=0) * 1.1).tolist()
        return mine, bound, hypervolume(rows, bound)

    def share(self, picked: Index) -> float:
        """Return the share of the front's hypervolume that some points have."""
        found = np.isin(self.index, picked)
        ours = (hypervolume(self.losses[mine & found], bound) for mine, bound, _ in self.whole)
        wholes = (volume for _, _, volume in self.whole)
        return float(np.mean([a / b for a, b in zip(ours, wholes, strict=True)]))

    def replayed(self, name: str, **options: Any) -> Iterator[Index]:
        """Yield the points picked by a search, round by round."""
        sweep = self.sweep
        goal = Goal(sweep.objectives, sweep.where, sweep.given)
        sampler = as_sampler(load_sampler(name, **options), goal)
        picked = np.empty(0, np.int64)
        for round_ in sampler.rounds(sweep.space, self.rows.lazy):
            picked = np.concatenate([picked, *(numbers(batch) for batch in round_)])
            yield picked


def flagship(outputs: str) -> Iterator[Check]:
    """Yield the share of the flagship's runs that searches need."""
    sweep = requested_sweep([f"+space={FLAGSHIP}", f"outputs={outputs}", "plot=false"]).sweep
    sweep.run()
    whole = Whole(sweep)
    points = len(whole.index)
    cheap = cheap_metrics(sweep.space, whole.index)
    assert cheap is not None
    for dear, near in FIDELITIES.items():
        both = pl.DataFrame({"dear": whole.rows[dear], "cheap": pl.Series(cheap[near])})
        both = both.filter(pl.Series(whole.met)).drop_nulls()
        value = float(both.select(pl.corr("dear", "cheap", method="spearman")).item())
        yield Check(f"{FLAGSHIP}, rank correlation of {near} with {dear}", value, rows=len(both))
    for name, wanted, limit in (("halving", 0.99, 8.0), ("nsga2", 0.98, 15.0)):
        most = int(points * limit / 100.0)
        runs, reached = [], []
        for seed in SEEDS:
            trace = [
                (len(picked), whole.share(picked))
                for picked in whole.replayed(name, points=most, seed=seed)
            ]
            reached.append(trace[-1][1])
            runs.append(next((n for n, share in trace if share >= wanted), points))
        value = float(np.mean(reached))
        first = ", ".join("never" if n == points else f"{100 * n / points:.1f} %" for n in runs)
        note = f"{len(SEEDS)} seeds; {wanted:.0%} after {first} of the runs"
        said = f"{FLAGSHIP}, {name}, hypervolume for {limit:g} % of the runs"
        yield Check(said, 100 * value, "%", 100 * wanted, value >= wanted, points, note)
    yield billion(f"{outputs}/billion")


def billion(outputs: str) -> Check:
    """Return the time to prove the front of more than a billion steady states."""
    asked = [f"+space={GPUS}", f"outputs={outputs}", "plot=false", *BILLION]
    sweep = requested_sweep([*asked, "sampler=bounds", "engine=inline"]).sweep
    began_s = time.perf_counter()
    sweep.run()
    took_s, rows = time.perf_counter() - began_s, sweep.store.scan()
    front = pareto_front(rows, sweep.objectives, per=list(sweep.given))
    looked = rows.select(pl.len()).collect().item()
    note = f"{len(sweep.space):.3g} designs, {looked:,} looked at, {len(front)} on the front"
    said = "exact front of 1e9 serving designs"
    return Check(said, took_s, "s", 120.0, took_s <= 120.0, len(sweep.space), note)


if __name__ == "__main__":
    main()
