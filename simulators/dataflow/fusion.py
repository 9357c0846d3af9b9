"""Layer fusion: the output of the first layer stays on chip as the input of the second.

The whole intermediate tensor stays in a shared on-chip level while both layers run, each mapped to
the remaining capacity of the level. Words of the tensor then do not cross the outermost level and
are not filled into the level; they are written and read on chip as before. Alwani et al.,
"Fused-layer CNN accelerators" (MICRO 2016), with a tile as large as the tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from simulators.catalog.accelerator import Accelerator
from simulators.core.errors import Infeasible
from simulators.dataflow.evaluation import machine_of, problem_of, scaled, totalled
from simulators.dataflow.search.bounds import compulsory
from simulators.dataflow.search.mapper import Found
from simulators.workload.loop_nest import Layer

Mapper = Callable[[Layer, Accelerator], Found]
WHOLE, NOTHING = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)


def feeds(first: Layer, second: Layer) -> bool:
    """Return whether the outputs of a layer can be the inputs of the next layer.

    Images or rows, channels, and pixels must agree, up to the halo and the stride.

    >>> from simulators.workload.loop_nest import matmul
    >>> feeds(matmul("up", n=8, c=16, m=32), matmul("down", n=8, c=32, m=16))
    True
    """
    made, taken = first.extents, second.extents
    channels = made.get("M", made.get("C", 1))
    if channels != taken.get("C", 1) or made.get("N", 1) != taken.get("N", 1):
        return False
    if made.get("B", 1) != taken.get("B", 1):
        return False
    inputs, outputs = second.tensors[1], first.tensors[2]
    pixels = outputs.words(made) // channels
    steps = [coef for rank in inputs.ranks for dim, coef in rank if dim in ("P", "Q")]
    wanted = taken.get("N", 1) * taken.get("B", 1)
    for dim, step in zip(("P", "Q"), steps, strict=False):
        wanted *= taken.get(dim, 1) * step
    return pixels == wanted


def fused(
    first: Layer, second: Layer, accelerator: Accelerator, mapper: Mapper
) -> tuple[Found, Found] | None:
    """Return both layers mapped with the intermediate tensor on chip, or None if infeasible.

    `first` writes the tensor and `second` reads it.
    """
    held = first.words(first.tensors[2].name)
    for k, level in enumerate(accelerator.levels[1:], start=1):
        if level.instances > 1 or (words := level.capacity_words) is None or held >= words:
            continue
        kept = ("Outputs", "Inputs")
        sets = [tuple(s for s in level.may_keep if tensor in s) for tensor in kept]
        if not all(sets):
            continue
        pair = []
        try:
            for layer, tensor, allowed in zip((first, second), kept, sets, strict=True):
                smaller = _less(accelerator, k, held, allowed)
                pair.append(_on_chip(mapper(layer, smaller), layer, tensor, k, smaller))
        except Infeasible:
            continue
        return pair[0], pair[1]
    return None


def in_pairs(
    chain: Sequence[Layer], accelerator: Accelerator, mapper: Mapper
) -> list[tuple[Layer, Found]]:
    """Return each layer of a chain with its mapping; fuse neighbors where that is better.

    Pairs are tried in order; a fusion is better if it has a smaller energy-delay product.
    """
    done: list[tuple[Layer, Found]] = []
    k = 0
    while k < len(chain):
        alone = mapper(chain[k], accelerator)
        if k + 1 < len(chain) and feeds(chain[k], chain[k + 1]):
            after = mapper(chain[k + 1], accelerator)
            pair = fused(chain[k], chain[k + 1], accelerator, mapper)
            if pair is not None and _edp(pair) < _edp((alone, after)):
                done += zip(chain[k : k + 2], pair, strict=True)
                k += 2
                continue
        done.append((chain[k], alone))
        k += 1
    return done


def _edp(found: tuple[Found, Found]) -> float:
    energy_pj = sum(f.evaluation.energy_pj for f in found)
    return energy_pj * sum(f.evaluation.cycles for f in found)


def _less(
    accelerator: Accelerator, place: int, held: int, allowed: tuple[tuple[str, ...], ...]
) -> Accelerator:
    level = accelerator.levels[place]
    smaller = dataclasses.replace(level, reserved_words=held, may_keep=allowed)
    levels = (*accelerator.levels[:place], smaller, *accelerator.levels[place + 1 :])
    return dataclasses.replace(accelerator, levels=levels)


def _on_chip(
    found: Found, layer: Layer, tensor: str, place: int, accelerator: Accelerator
) -> Found:
    """Return a layer without the words of a tensor that enter a level from outer levels."""
    outer = {level.name for level in accelerator.levels[:place]}
    name = accelerator.levels[place].name
    lines = []
    for line in found.evaluation.traffic:
        scale = WHOLE
        if line.tensor == tensor and line.level in outer:
            scale = NOTHING
        elif line.tensor == tensor and line.level == name:
            scale = (1.0, 0.0, 1.0)
        lines.append(scaled(line, scale, accelerator))
    evaluation = totalled(found.evaluation, lines, accelerator)
    return found.restated(evaluation, *_bounds(layer, tensor, accelerator))


def _bounds(layer: Layer, tensor: str, accelerator: Accelerator) -> tuple[float, int]:
    """Return the bounds of a layer whose intermediate tensor may cost nothing.

    Energy is reduced by the largest cost of the tensor at the outermost level; cycles are those of
    the multiplies.
    """
    energy_pj, _ = compulsory(layer, accelerator, problem_of(layer, accelerator))
    outermost = accelerator.levels[0]
    worst = float(max(machine_of(accelerator).energy_pj[0, :3]))
    energy_pj -= worst * layer.words(tensor) / outermost.block_words
    return max(energy_pj, 0.0), -(-layer.macs // accelerator.mac.instances)
