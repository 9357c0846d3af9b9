"""Energy and cycles of mappings follow from their accesses; compiled, one mapping after the other.

A level's time is its words over its bandwidth, and the slowest of levels and multipliers sets the
pace: filling and draining overlap with work.
"""

from __future__ import annotations

import numpy as np

from simulators.core.jit import Floats, Ints, array, f8, i8, kernel, matrix
from simulators.dataflow.access import (
    BLOCK,
    COUNTS,
    FAN_X,
    FAN_Y,
    FEASIBLE,
    FILLS,
    HOP,
    LEAK,
    LOOPS,
    MACHINE,
    NEST,
    READS,
    SHIFT,
    TENSORS,
    UPDATES,
    USED,
    WORK,
    Machine,
    Nest,
    Work,
    count,
    lay_out,
)
from simulators.dataflow.remainders import count_cut

ENERGY_PJ, CYCLES, COMPUTE_CYCLES, MACS_USED = range(4)
RESULTS = 4


@kernel(i8(MACHINE, array(i8), WORK, COUNTS, i8, i8, array(f8)), borrows=True)
def charge(
    machine: Machine, keep: Ints, work: Work, counts: Ints, compute: int, macs: int, out: Floats
) -> int:
    """Fill in energy and cycles from the counts; return the cycles.

    Instances that are cut short cost the share of the first one's energy that they have of its
    accesses.
    """
    sizes, energy, rates = machine.sizes, machine.energy_pj, machine.rates
    places, levels, cut = work.places, keep.size, work.cut[0]
    cycles = float(compute)
    energy_pj = energy[levels, READS] * macs
    for level in range(levels):
        reads = writes = 0
        spent_pj = 0.0
        shift, block = sizes[level, SHIFT], sizes[level, BLOCK]
        for tensor in range(TENSORS):
            if not keep[level] >> tensor & 1:
                continue
            reads += counts[level, tensor, READS]
            writes += counts[level, tensor, FILLS] + counts[level, tensor, UPDATES]
            for action in range(3):
                words = counts[level, tensor, action] + block - 1
                blocks = words >> shift if shift >= 0 else words // block
                share = 1.0
                if cut and counts[level, tensor, action] > 0:
                    whole = counts[level, tensor, action] * places[level, USED]
                    share = work.totals[level, tensor, action] / whole
                spent_pj += energy[level, action] * blocks * share
        # Words leave by a wire along the columns and one along the rows, half of each on average.
        hops = 0.5 * (sizes[level, FAN_X] + sizes[level, FAN_Y])
        spent_pj += rates[level, HOP] * hops * reads
        energy_pj += spent_pj * places[level, USED]
        cycles = max(cycles, np.ceil(reads / rates[level, 0]))
        cycles = max(cycles, np.ceil(writes / rates[level, 1]))
        cycles = max(cycles, np.ceil((reads + writes) / rates[level, 2]))
    for level in range(levels + 1):
        energy_pj += energy[level, LEAK] * cycles * places[level, USED]
    out[ENERGY_PJ] = energy_pj
    out[CYCLES] = cycles
    out[COMPUTE_CYCLES] = compute
    out[MACS_USED] = places[levels, USED]
    return int(cycles)


@kernel(i8(NEST, MACHINE, LOOPS, array(i8), WORK, COUNTS, array(f8)), borrows=True)
def evaluate(
    nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work, counts: Ints, out: Floats
) -> int:
    """Count and charge one mapping; return why it is infeasible, or 0."""
    temporal = lay_out(nest, machine, loops, keep, work)
    if temporal < 0:
        return -temporal
    if work.cut[0]:
        compute = count_cut(nest, machine, loops, keep, work, counts)
    else:
        compute = count(nest, machine, loops, keep, work, temporal, counts)
    macs = 1
    for d in range(nest.bounds.size):
        macs *= nest.bounds[d]
    charge(machine, keep, work, counts, compute, macs, out)
    return FEASIBLE


@kernel(
    i8(NEST, MACHINE, array(i8, 4), matrix(i8), WORK, COUNTS, matrix(f8), array(i8)), borrows=True
)
def evaluate_all(
    nest: Nest, machine: Machine, loops: Ints, keep: Ints, work: Work, counts: Ints,
    out: Floats, verdicts: Ints,
) -> int:  # fmt: skip
    """Evaluate many mappings, each on its own; return how many are feasible."""
    feasible = 0
    for row in range(keep.shape[0]):
        verdicts[row] = evaluate(nest, machine, loops[row], keep[row], work, counts, out[row])
        feasible += verdicts[row] == FEASIBLE
    return feasible
