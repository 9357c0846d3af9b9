"""An iteration as sums over requests, and the shard of a pipeline stage on one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulators.catalog.model import LanguageModel
from simulators.workload.llm.parallelism import Parallelism, Stage
from simulators.workload.operators import Column, Elementwise, Gemm, Norm
from simulators.workload.precision import Precision, precision

PREFILL_SUMS = ("prefills", "prefill_tokens", "prefill_pairs", "prefill_kv_tokens")
DECODE_SUMS = ("decodes", "drafted", "decode_kv_tokens")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Work of an iteration as sums over its requests; a sum may be a column of rows.

    A prefill chunk of `c` tokens after `past` earlier ones scores `c * past + c * (c + 1) / 2`
    pairs and reads `past + c` keys; a decode reads every key of its request, the new one included.
    """

    prefills: Column = 0.0  # requests with a chunk of prompt
    prefill_tokens: Column = 0.0
    prefill_pairs: Column = 0.0
    prefill_kv_tokens: Column = 0.0
    decodes: Column = 0.0  # requests with one new token
    drafted: Column = 0.0  # draft tokens that are verified
    decode_kv_tokens: Column = 0.0
    logits_rows: Column = 0.0  # rows of the LM head: decodes, drafts and finished prompts

    @property
    def tokens(self) -> Column:
        """Rows that flow through the linear layers."""
        return self.prefill_tokens + self.decodes + self.drafted


def prefill_step(batch: Column, prompt: Column) -> Step:
    """Return the step of `batch` whole prompts of `prompt` tokens.

    >>> prefill_step(2.0, 3.0).prefill_pairs
    12.0
    """
    tokens = batch * prompt
    return Step(
        prefills=batch,
        prefill_tokens=tokens,
        prefill_pairs=tokens * (prompt + 1.0) / 2.0,
        prefill_kv_tokens=tokens,
        logits_rows=batch,
    )


def chunk_step(tokens: Column, past: Column, answered: Column) -> Step:
    """Return the step of a chunk of `tokens` after `past` tokens of one sequence.

    `answered`: rows of logits, 1 for a prompt after a cached prefix, else one per draft token.

    >>> chunk_step(2.0, 10.0, 1.0).prefill_pairs
    23.0
    """
    return Step(
        prefills=1.0,
        prefill_tokens=tokens,
        prefill_pairs=tokens * past + tokens * (tokens + 1.0) / 2.0,
        prefill_kv_tokens=past + tokens,
        logits_rows=answered,
    )


def decode_step(batch: Column, context: Column) -> Step:
    """Return the step of `batch` decodes with `context` keys each."""
    return Step(decodes=batch, decode_kv_tokens=batch * context, logits_rows=batch)


@dataclass(frozen=True)
class Shard:
    """The layers of a pipeline stage on one GPU: parallelism and precision."""

    model: LanguageModel
    layout: Parallelism
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
        return self.model.heads / self.layout.tp

    def linear(self, name: str, m: Column, n: Column, k: Column, repeat: float) -> Gemm:
        """Return a linear layer over `m` rows."""
        how = self.how
        return Gemm(
            name=name, m=m, n=n, k=k, dtype=how.compute, weight_dtype=how.weights, repeat=repeat
        )

    def wide(self, name: str, m: Column, n: Column, k: Column, repeat: float = 1) -> Gemm:
        """Return a product in the activations' precision: router, indexer, LM head."""
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
