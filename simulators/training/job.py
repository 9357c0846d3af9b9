"""The job that all rows of a batch share: model, GPU, cluster, tensor, context and expert ranks.

A replica's ranks are numbered tensor ranks first, then context, data and pipeline ranks, as
Megatron-LM places them: neighbours share what they exchange most. Experts are dealt to ranks that
otherwise hold different tokens: tensor ranks of a layer's experts first, then `ep` of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.catalog.cluster import Cluster
from simulators.catalog.gpu import Gpu
from simulators.catalog.model import LanguageModel
from simulators.core.errors import Infeasible
from simulators.workload.llm.adapters import TARGETS, adapter_numbers
from simulators.workload.llm.parallelism import Parallelism, check_cut
from simulators.workload.llm.routing import skewed_share

ATTENTIONS = ("flash", "flash2", "unfused", "flash_fp8")
FLASH, FLASH2, UNFUSED, FLASH_FP8 = ATTENTIONS
"""Attention in the best kernel there is for the GPU; in FlashAttention-2, written for Ampere; as
products, softmax and dropout that keep all scores, as until 2022; or in the best kernel that
multiplies and keeps 8 bits, both ways."""

LORA_TARGETS = TARGETS
"""Products beside which adapters are trained: attention's projections, or a dense layer's all."""

FUSIONS = ("fused", "eager")
FUSED, EAGER = FUSIONS
"""What stands between products: one kernel, or those of PyTorch one after another."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Fields that rows with the same layer times have in common."""

    model: LanguageModel
    gpu: Gpu
    cluster: Cluster
    dtype: str = "bf16"
    sequence: int = 2048
    tp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int = 1
    sequence_parallel: bool = True  # norms are cut over tensor ranks, sums become gathers
    attention: str = FLASH
    fusion: str = FUSED
    context_exchange: str = "zigzag"
    lora_rank: int = 0  # of adapters, all else frozen; 0: none
    lora_targets: str = LORA_TARGETS[0]
    routing_skew: float = 0.0  # Zipf's exponent of how tokens prefer experts
    capacity_factor: float = 0.0  # of experts, beyond which tokens are dropped; 0: none are
    cuda_graphs: bool = False  # replay whole steps, so that no layer waits for launches
    layer_graphs: bool = False  # replay layers alone: what is between steps waits for its host
    predicted_share: float = 1.0  # tokens whose logits are computed; of masked language models few

    @property
    def groups(self) -> int:
        """Groups of tensor ranks whose tokens meet in a layer of experts."""
        return max(1, self.ep * self.expert_tp // self.tp)

    @property
    def cut(self) -> Parallelism:
        """One pipeline stage as `workload` sees it."""
        if self.ep * self.expert_tp == 1:
            return Parallelism(tp=self.tp)
        return Parallelism(tp=self.tp, ep=self.ep, attention_dp=self.groups)

    @property
    def busiest(self) -> float:
        """Tokens of the busiest expert rank over the mean tokens per rank."""
        return skewed_share(
            self.model.experts, self.model.top_k, self.ep, self.routing_skew, self.capacity_factor
        )

    @property
    def trained_share(self) -> float:
        """Share of the weights that is trained: all, or the adapters' weights over the model's."""
        model = self.model
        adapters = self.lora_rank * adapter_numbers(model, self.lora_targets)
        return adapters / model.parameters if self.lora_rank else 1.0

    @property
    def norm_ranks(self) -> int:
        """Ranks that split norms and pointwise kernels (sequence parallelism)."""
        return self.tp if self.sequence_parallel else 1


def check_job(job: Job) -> None:
    """Raise `Infeasible` if the model cannot be cut this way."""
    ranks = job.ep * job.expert_tp
    if ranks > 1 and ranks % job.tp and job.tp % ranks:
        raise Infeasible(
            "experts_do_not_divide_ranks", f"ep {job.ep} x expert_tp {job.expert_tp}, tp {job.tp}"
        )
    check_cut(job.model, job.cut)
    if job.sequence % job.cp:
        raise Infeasible("cp_does_not_divide_sequence", f"cp {job.cp}, {job.sequence} tokens")
    for dtype in ("bf16", job.dtype, "fp8" if job.attention == FLASH_FP8 else "bf16"):
        if dtype not in job.gpu.peak_flops:
            has = ", ".join(job.gpu.peak_flops)
            raise Infeasible("dtype_not_supported", f"gpu '{job.gpu.name}' has {has}, not {dtype}")
