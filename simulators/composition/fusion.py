"""Compilers and engines fuse what stands between two products; without that each step is a kernel.

A fused kernel moves its inputs and its result once. Its steps alone write what lies between them
and read it again: a residual sum and its norm, a rotary embedding and the write to the cache.
Activations take their gate along even so, as in all engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulators.catalog.model import LanguageModel
from simulators.workload.operators import Compute, Elementwise, Norm


def unfused(operators: Sequence[Compute], model: LanguageModel) -> tuple[Compute, ...]:
    """Return the operators with every fused chain taken apart.

    >>> from simulators.catalog.model import load_model
    >>> chain = Elementwise(name="ffn_norm", elements=8192.0, reads=2.0, writes=2.0)
    >>> [o.name for o in unfused((chain,), load_model("llama2_70b"))]
    ['ffn_norm_residual', 'ffn_norm']
    """
    return tuple(step for operator in operators for step in _steps(operator, model))


def _steps(operator: Compute, model: LanguageModel) -> tuple[Compute, ...]:
    """Return the kernels an operator is made of; itself if it is one already."""
    if not isinstance(operator, Elementwise):
        return (operator,)
    if operator.name.endswith("_norm"):
        return (
            replace(operator, name=f"{operator.name}_residual", reads=2.0, writes=1.0),
            Norm(
                name=operator.name,
                rows=operator.elements / model.hidden,
                cols=model.hidden,
                kind=model.norm,
                dtype=operator.dtype,
                repeat=operator.repeat,
            ),
        )
    if operator.name == "rotary_cache_write":
        return (replace(operator, name="rotary"), replace(operator, name="cache_write"))
    return (operator,)
