"""Regret of decisions: loss of choosing by predictions instead of by measurements.

A decision has alternatives, each a design with the loads it was measured under. A design is worth
what its best load is, as an operator finds the load once the design stands; a load that breaks its
deadline is worth nothing. The regret of a choice is what the chosen design is worth less than the
best one, both as measured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.tables.rows import Bools
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import DEFAULT, usd_per_gpu_hours
from simulators.core.jit import Floats
from simulators.serving.measured_deployments import Deployed

TPOT, TTFT = "TPOT", "TTFT"
FEWEST = 4
"""Alternatives that make a decision."""

DEADLINES_S = (0.025, 0.05, 0.1)
"""Of a token: a fast reader's, and two that leave more time for batches. Named, not fitted."""

Times = Mapping[str, Floats]
"""Mean seconds per token and to the first one, of rows; NaN where none is given."""


@dataclass(frozen=True)
class Decisions:
    """Choices among measured rows.

    Args:
        of: which decision each row is an alternative of.
        designs: which design each row is a load of.
        worth: what each row is worth by some times.
        kinds: of which the alternatives must show two, of each row; none if empty.
    """

    of: Sequence[Hashable]
    designs: Sequence[Hashable]
    worth: Callable[[Times], Floats]
    kinds: Sequence[str] = ()

    def regrets(self, measured: Times, believed: Times, which: Bools) -> Floats:
        """Return what each decision among some rows gives up, in percent.

        Whoever believes that no alternative keeps the deadline gives up everything, where one does.
        """
        true, predicted = self.worth(measured), self.worth(believed)
        usable = which & ~np.isnan(true) & ~np.isnan(predicted)
        choices: dict[Hashable, dict[Hashable, list[int]]] = {}
        for i in np.flatnonzero(usable).tolist():
            choices.setdefault(self.of[i], {}).setdefault(self.designs[i], []).append(i)
        found = []
        for designs in choices.values():
            best = np.array([true[loads].max() for loads in designs.values()])
            hoped = np.array([predicted[loads].max() for loads in designs.values()])
            kinds = {self.kinds[loads[0]] for loads in designs.values()} if self.kinds else ()
            if len(designs) < FEWEST or not best.any() or len(kinds) == 1:
                continue
            chosen = best[int(np.argmax(hoped))] if hoped.any() else 0.0
            found.append(1.0 - chosen / best.max())
        return 100.0 * np.array(found, np.float64)


def within_gpu(rows: Sequence[Deployed]) -> list[Decisions]:
    """Return choices of framework, precision and cut for one load on one GPU, by throughput."""
    loads = [(row.model, row.gpu, row.prompt, row.output, row.clients) for row in rows]
    return [Decisions(loads, range(len(rows)), lambda times: throughput(rows, times))]


def across_gpus(rows: Sequence[Deployed], cost: Floats) -> list[Decisions]:
    """Return choices of GPU, framework, precision and cut, one set for each deadline of a token.

    Args:
        rows: what was measured.
        cost: of a GPU for a while, of each row: dollars or joules; NaN where nobody states it.
    """
    lengths = [(row.model, row.prompt, row.output) for row in rows]
    designs = [(row.gpu, row.framework, row.dtype, row.cut) for row in rows]
    gpus = [row.gpu for row in rows]

    def worth(deadline_s: float) -> Callable[[Times], Floats]:
        def of(times: Times) -> Floats:
            rate = throughput(rows, times) / cost
            return np.where(times[TPOT] > deadline_s, 0.0 * rate, rate)

        return of

    return [Decisions(lengths, designs, worth(limit), gpus) for limit in DEADLINES_S]


def regrets(
    decisions: Sequence[Decisions], measured: Times, predicted: Times, which: Bools
) -> Floats:
    """Return what each decision of several sets gives up, in percent."""
    return np.concatenate([one.regrets(measured, predicted, which) for one in decisions])


def throughput(rows: Sequence[Deployed], times: Times) -> Floats:
    """Return output tokens per second and GPU of a closed loop, from its mean times."""
    output = np.array([row.client.mean_length * row.output for row in rows])
    clients = np.array([row.clients for row in rows])
    gpus = np.array([row.cut.gpus for row in rows])
    answer_s = times[TTFT] + times[TPOT] * (output - 1.0)
    return np.asarray(clients * output / answer_s / gpus, np.float64)


def usd_per_hour(rows: Sequence[Deployed]) -> Floats:
    """Return the list price of each row's GPU; NaN where there is none."""
    return usd_per_gpu_hours([row.gpu for row in rows], DEFAULT)


def power_limit_w(rows: Sequence[Deployed]) -> Floats:
    """Return the power limit of the GPU of each row: no draw was metered."""
    return np.array([load_gpu(row.gpu).tdp_w for row in rows], np.float64)
