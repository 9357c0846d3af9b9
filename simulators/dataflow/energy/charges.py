"""Energy and cycles of mappings from their accesses: the compiled core of the mapper.

A level's time is its words over its bandwidth, and the slowest of levels and multipliers sets the
pace: filling and draining overlap with work.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats, Ints, array, f8, i8, kernel
from simulators.dataflow.access import arrays as at
from simulators.dataflow.access.arrays import COUNTS, KEEP, LOOPS, PROBLEM, Problem
from simulators.dataflow.access.exact_counts import count, lay_out
from simulators.dataflow.access.remainders import count_cut

ENERGY_PJ, CYCLES, COMPUTE_CYCLES, MACS_USED = range(4)
RESULTS = 4


@kernel(i8(PROBLEM, KEEP, COUNTS, i8, array(f8)), no_refcount=True)
def charge(problem: Problem, keep: Ints, counts: Ints, compute: int, out: Floats) -> int:
    """Fill in energy and cycles from the counts; return the cycles.

    Instances that are cut short cost the share of the first one's energy that they have of its
    accesses.
    """
    sizes, energy, rates = problem.sizes, problem.energy_pj, problem.rates
    instances, levels, cut = problem.instances, keep.size, problem.cut[0]
    macs = 1
    for d in range(problem.bounds.size):
        macs *= problem.bounds[d]
    cycles = float(compute)
    energy_pj = energy[levels, at.READS] * macs
    for level in range(levels):
        reads = writes = 0
        spent_pj = 0.0
        shift, block = sizes[level, at.SHIFT], sizes[level, at.BLOCK]
        for tensor in range(at.TENSORS):
            if not keep[level] >> tensor & 1:
                continue
            reads += counts[level, tensor, at.READS]
            writes += counts[level, tensor, at.FILLS] + counts[level, tensor, at.UPDATES]
            for action in range(3):
                words = counts[level, tensor, action] + block - 1
                blocks = words >> shift if shift >= 0 else words // block
                share = 1.0
                if cut and counts[level, tensor, action] > 0:
                    whole = counts[level, tensor, action] * instances[level, at.USED]
                    share = problem.totals[level, tensor, action] / whole
                spent_pj += energy[level, action] * blocks * share
        # Words leave by a wire along the columns and one along the rows, half of each on average.
        hops = 0.5 * (sizes[level, at.FAN_X] + sizes[level, at.FAN_Y])
        spent_pj += rates[level, at.HOP] * hops * reads
        energy_pj += spent_pj * instances[level, at.USED]
        cycles = max(cycles, np.ceil(reads / rates[level, 0]))
        cycles = max(cycles, np.ceil(writes / rates[level, 1]))
        cycles = max(cycles, np.ceil((reads + writes) / rates[level, 2]))
    for level in range(levels + 1):
        energy_pj += energy[level, at.LEAK] * cycles * instances[level, at.USED]
    out[ENERGY_PJ] = energy_pj
    out[CYCLES] = cycles
    out[COMPUTE_CYCLES] = compute
    out[MACS_USED] = instances[levels, at.USED]
    return int(cycles)


@kernel(i8(PROBLEM, LOOPS, KEEP, COUNTS, array(f8)), no_refcount=True)
def evaluate(problem: Problem, loops: Ints, keep: Ints, counts: Ints, out: Floats) -> int:
    """Count and charge one mapping; return why it is infeasible, or 0."""
    temporal = lay_out(problem, loops, keep)
    if temporal < 0:
        return -temporal
    if problem.cut[0]:
        compute = count_cut(problem, loops, keep, counts)
    else:
        compute = count(problem, loops, keep, temporal, counts)
    charge(problem, keep, counts, compute, out)
    return at.FEASIBLE
