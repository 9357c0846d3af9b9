"""Operators that an engine fuses into one kernel, or runs apart.

Workloads fuse everything between two products. Experts were timed with the gathering of their rows.
TensorRT-LLM adds residual, norm and quantisation to the all-reduce, in models whose code asks for
it; in other models, and without fusion, each of these is a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulators.catalog.model import LanguageModel
from simulators.composition.replica import Replica
from simulators.kernels.price import is_timed_as_layer
from simulators.workload.operators import Compute, Elementwise, GroupedGemm, Norm, Quantisation
from simulators.workload.precision import QUANTISED, precision

AROUND_EXPERTS = ("gather_by_expert", "experts_activation", "weighted_sum")
"""What frameworks run, and what was timed, in one call with the products of experts."""

RESIDUAL_NORMS = ("attention_norm", "ffn_norm")


def launched(operators: Sequence[Compute], replica: Replica) -> Sequence[Compute]:
    """Return the operators with those chains taken apart that the replica runs step by step."""
    if not replica.is_fused:
        return unfused(operators, replica.model)
    if replica.library in replica.model.apart_in and not replica.accelerator:
        return quantised_apart(operators, replica)
    return operators


def inside_others(operators: Sequence[Compute], replica: Replica) -> Sequence[str]:
    """Return the names of operators that other kernels or messages have in their time already."""
    inside = replica.kernel_choices.fused_into_attention
    cut, asked = replica.cut, replica.runtime.norms_in_sums
    asked = asked and replica.library not in replica.model.apart_in
    if replica.is_fused and asked and cut.tp > 1 and cut.attention_dp == 1:
        inside = (*inside, *RESIDUAL_NORMS)  # in the all-reduce after each block
    experts = next((one for one in operators if isinstance(one, GroupedGemm)), None)
    if experts is None or not is_timed_as_layer(
        experts, replica.gpu, replica.library, replica.level
    ):
        return inside
    return (*inside, *AROUND_EXPERTS)


def quantised_apart(operators: Sequence[Compute], replica: Replica) -> tuple[Compute, ...]:
    """Return the operators with a kernel behind each norm that makes a product's input narrow."""
    how = precision(replica.dtype)
    if how.compute not in QUANTISED:
        return tuple(operators)
    found: list[Compute] = []
    for operator in operators:
        found.append(operator)
        if isinstance(operator, Elementwise) and operator.name in RESIDUAL_NORMS:
            hidden, name = replica.model.hidden, f"{operator.name}_quantise"
            size: dict[str, Any] = {"rows": operator.elements / hidden, "cols": hidden}
            size |= {"to": how.compute, "dtype": how.activations, "repeat": operator.repeat}
            found.append(Quantisation(name=name, **size))
    return tuple(found)


def unfused(operators: Sequence[Compute], model: LanguageModel) -> tuple[Compute, ...]:
    """Return the operators with every fused chain taken apart.

    A fused kernel moves its inputs and its result once. Its steps alone write what lies between
    them and read it again: a residual sum and its norm, a rotary embedding and the write to the
    cache. Activations take their gate along even so, as in all engines.

    >>> from simulators.catalog.model import load_model
    >>> chain = Elementwise(name="ffn_norm", elements=8192.0, reads=2.0, writes=2.0)
    >>> [o.name for o in unfused((chain,), load_model("llama2_70b"))]
    ['ffn_norm_residual', 'ffn_norm']
    """
    return tuple(step for operator in operators for step in _steps(operator, model))


def _steps(operator: Compute, model: LanguageModel) -> tuple[Compute, ...]:
    """Return the kernels an operator is made of; itself if it is one already."""
    if isinstance(operator, Elementwise) and operator.name.endswith("_norm"):
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
