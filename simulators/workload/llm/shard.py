"""The shard of a pipeline stage on one GPU, and its linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulators.catalog.model import LanguageModel
from simulators.workload.llm.parallelism import Parallelism, Stage
from simulators.workload.operators import Column, Elementwise, Gemm, Norm
from simulators.workload.precision import Precision, precision


@dataclass(frozen=True)
class Shard:
    """The layers of a model on one GPU: how they are cut, and in which precision."""

    model: LanguageModel
    cut: Parallelism
    part: Stage
    dtype: str
    kv_dtype: str = "fp16"

    @property
    def how(self) -> Precision:
        """Precisions of products and activations of linear layers."""
        return precision(self.dtype)

    @property
    def heads(self) -> float:
        """Query heads on the GPU."""
        return self.model.heads / self.cut.tp

    def linear(self, name: str, m: Column, n: Column, k: Column, repeat: float) -> Gemm:
        """Return a linear layer over `m` rows."""
        how = self.how
        return Gemm(
            name=name, m=m, n=n, k=k, dtype=how.compute, weight_dtype=how.weights, repeat=repeat
        )

    def wide(self, name: str, m: Column, n: Column, k: Column, repeat: float = 1) -> Gemm:
        """Return a product as wide as activations: of a router, an indexer, the LM head."""
        return Gemm(name=name, m=m, n=n, k=k, dtype=self.how.activations, repeat=repeat)

    def pointwise(
        self,
        name: str,
        elements: Column,
        repeat: float,
        reads: float = 1.0,
        writes: float = 1.0,
        dtype: str = "",
    ) -> Elementwise:
        """Return a fused pointwise kernel, in the activations' dtype unless another is given."""
        moved: dict[str, Any] = {"elements": elements, "reads": reads, "writes": writes}
        return Elementwise(name=name, **moved, dtype=dtype or self.how.activations, repeat=repeat)

    def norm(
        self, name: str, rows: Column, cols: Column, repeat: float = 1, kind: str = "rms_norm"
    ) -> Norm:
        """Return a norm of activations."""
        dtype = self.how.activations
        return Norm(name=name, rows=rows, cols=cols, kind=kind, dtype=dtype, repeat=repeat)
