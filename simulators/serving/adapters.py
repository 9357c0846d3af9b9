"""LoRA adapters of one model: popularity, and the adapters kept on the GPU.

A request uses adapter `i` with probability `p_i`, proportional to `1 / i ** zipf`. A batch of `B`
requests uses `sum(1 - (1 - p_i) ** B)` adapters on average. The least recently used adapter is
evicted; an adapter is found on the GPU with probability `1 - exp(-p_i T)`, where `T` follows from
the number of slots (Che et al., "Hierarchical web caching systems", 2002).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from simulators.composition.replica import NOTHING, Replica
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats
from simulators.serving.options import BY_TOKEN
from simulators.serving.point import ServingPoint
from simulators.serving.prices.hardware import Hardware
from simulators.workload.llm.transformer import ALL, ATTENTION, adapter_numbers
from simulators.workload.precision import number_bytes, precision

HALVINGS = 80
"""Bisection steps for `T`: more than double precision can resolve."""


def popularity(adapters: int, zipf: float) -> Floats:
    """Return the share of requests for each adapter, the most popular first.

    >>> popularity(2, 1.0).round(3).tolist()
    [0.667, 0.333]
    """
    weights = 1.0 / np.arange(1.0, adapters + 1.0) ** zipf
    shares: Floats = weights / weights.sum()
    return shares


def distinct(shares: Floats, requests: Floats) -> Floats:
    """Return the mean number of distinct adapters in batches of some numbers of requests.

    >>> distinct(popularity(2, 0.0), np.array([1.0, 2.0])).tolist()
    [1.0, 1.5]
    """
    return np.asarray((1.0 - (1.0 - shares) ** requests[..., None]).sum(axis=-1))


@functools.lru_cache(maxsize=1024)
def missing_share(adapters: int, zipf: float, kept: int) -> float:
    """Return the share of requests whose adapter is not cached on the GPU.

    >>> missing_share(4, 0.0, 4), round(missing_share(4, 0.0, 1), 3)
    (0.0, 0.75)
    """
    if kept >= adapters:
        return 0.0
    shares = popularity(adapters, zipf)
    low, high = 0.0, 1.0 / float(shares.min()) * shares.size * 64.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if float((1.0 - np.exp(-shares * middle)).sum()) < kept:
            low = middle
        else:
            high = middle
    return float((shares * np.exp(-shares * low)).sum())


@dataclass(frozen=True)
class AdapterSet:
    """Adapters of one rank, of which `kept` are on the GPU."""

    adapters: int
    rank: int
    targets: str
    zipf: float
    by_token: bool  # decodes read an adapter per token; otherwise tokens share an adapter's read
    kept: int  # adapters on the GPU
    load_s: float  # to load one adapter from the host
    missing: float  # share of requests whose adapter has to be loaded
    bytes_per_gpu: float  # of all adapters on the GPU

    def distinct_in(self, requests: Floats) -> Floats:
        """Return the mean number of distinct adapters in batches of some numbers of requests."""
        return distinct(popularity(self.adapters, self.zipf), requests)


def fleet_of(point: ServingPoint, hardware: Hardware) -> AdapterSet | None:
    """Return the LoRA adapters of a point; None without adapters.

    Raises:
        Infeasible: a combination of options is not modelled, or the slots are fewer than the
            adapters of a full batch.
        UserError: the GPU's data sheet lacks the bandwidth of the link to the host.
    """
    if not point.lora.adapters:
        return None
    replica = hardware.replica
    _check(point, replica)
    kept, most = slots_of(point), min(point.lora.adapters, point.max_num_seqs)
    missing = missing_share(point.lora.adapters, point.lora.zipf, kept)
    if point.lora.slots and kept < most:
        raise Infeasible(
            "adapter_slots_below_batch", f"a batch may use {most} adapters; slots: {kept}"
        )
    numbers = adapter_numbers(replica.model, point.lora.targets) / replica.model.layers
    layers = np.ceil(replica.model.layers / replica.layout.pp)
    width = number_bytes(precision(replica.dtype).activations)
    one = point.lora.rank * numbers * layers * width / replica.layout.tp
    if missing and replica.gpu.pcie_bytes_per_s <= 0.0:
        raise UserError(f"gpu '{replica.gpu.name}' has no pcie_bytes_per_s, which adapters need")
    return AdapterSet(
        point.lora.adapters,
        point.lora.rank,
        point.lora.targets,
        point.lora.zipf,
        point.lora.kernels == BY_TOKEN,
        kept,
        one / replica.gpu.pcie_bytes_per_s if missing else 0.0,
        missing,
        kept * one,
    )


def slots_of(point: ServingPoint) -> int:
    """Return the number of adapters on the GPU: `lora.slots`, or the adapters of a full batch.

    S-LoRA, whose kernels gather by token, keeps adapters and KV cache in the same pages: by default
    the mean number of adapters of a full batch.

    >>> from simulators.serving.options import LoraConfig
    >>> slots_of(ServingPoint("llama3_1_8b", "h100_sxm", max_batch=128, lora=LoraConfig(200)))
    128
    """
    most = min(point.lora.adapters, point.max_num_seqs)
    if point.lora.kernels == BY_TOKEN and not point.lora.slots:
        shares = popularity(point.lora.adapters, point.lora.zipf)
        mean = float(distinct(shares, np.array([float(most)]))[0])
        return min(math.ceil(mean), point.lora.adapters)
    return min(point.lora.slots or most, point.lora.adapters)


def _check(point: ServingPoint, replica: Replica) -> None:
    if point.speculation.method != NOTHING and point.speculation.num_draft_tokens:
        raise Infeasible("adapters_with_drafts")
    if point.iteration_table or replica.accelerator:
        raise Infeasible("adapters_need_composition", "other times do not cover adapter products")
    if point.attention_dp > 1:
        raise Infeasible("adapters_need_attention_dp_1")
    if point.lora.targets == ALL and replica.model.expert_layers == replica.model.layers:
        raise Infeasible(
            "adapter_targets_all_needs_dense_layers",
            f"apart from attention, all linear layers of {replica.model.name} are experts: use "
            f"lora.targets {ATTENTION}",
        )
    if replica.model.is_latent or replica.model.has_states:
        raise Infeasible("adapters_need_plain_attention", replica.model.name)
