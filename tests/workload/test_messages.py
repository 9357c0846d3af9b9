"""Communication volume between ranks of a stage, in bytes worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulators.catalog.model import load_model
from simulators.workload.llm.parallelism import Parallelism, Stage
from simulators.workload.llm.step import Shard
from simulators.workload.llm.transformer import collectives, logits_collectives
from simulators.workload.operators import Collective

MODEL = replace(load_model("mixtral_8x7b"), hidden=1_000, vocab=5_000, experts=8, top_k=2)
INNER = Stage(dense_layers=1, expert_layers=3, has_embedding=False, has_head=False)


def messages(
    layout: Parallelism, part: Stage = INNER, dtype: str = "fp16"
) -> dict[str, Collective]:
    """Return the messages of 80 tokens by name."""
    return {one.name: one for one in collectives(Shard(MODEL, layout, part, dtype), 80.0)}


# Four groups have 80 tokens each, of 1,000 numbers: each rank gathers all 320,000, as narrow as the
# experts' products, and the sums of as many numbers are scattered, however experts are dealt.
@pytest.mark.parametrize(("ep", "dtype", "narrow"), [(4, "fp16", 2), (4, "fp8", 1), (1, "fp16", 2)])
def test_experts_gather_tokens_of_all_groups_and_scatter_sums(
    ep: int, dtype: str, narrow: int
) -> None:
    sent = messages(Parallelism(tp=2, attention_dp=4, ep=ep), dtype=dtype)
    dispatch, combine = sent["experts_dispatch"], sent["experts_combine"]
    assert (dispatch.kind, combine.kind) == ("all_gather", "reduce_scatter")
    assert dispatch.size_bytes == 320_000 * narrow
    assert combine.size_bytes == 320_000 * 2
    assert (dispatch.ranks, dispatch.repeat) == (combine.ranks, combine.repeat) == (8, 3)


def test_all_to_all_runs_only_between_several_groups() -> None:
    assert "experts_dispatch" in messages(Parallelism(attention_dp=2))
    assert "experts_dispatch" not in messages(Parallelism(tp=8, ep=8))
    dense = replace(INNER, expert_layers=0)
    assert messages(Parallelism(attention_dp=2), dense) == {}


@pytest.mark.parametrize(
    ("attention_dp", "embedding", "sums"),
    [
        (1, False, 2 * 4),  # after attention and feed-forward of four layers
        (1, True, 2 * 4 + 1),
        (2, False, 2 * 4 - 3),  # what comes back from experts is summed already
    ],
)
def test_tensor_parallel_all_reduce_follows_every_split_gemm(
    attention_dp: int, embedding: bool, sums: int
) -> None:
    part = replace(INNER, has_embedding=embedding)
    total = messages(Parallelism(tp=2, attention_dp=attention_dp), part)["tensor_parallel_sum"]
    assert (total.kind, total.ranks, total.repeat) == ("all_reduce", 2, sums)
    assert total.size_bytes == 80 * 1_000 * 2


def test_tensor_parallel_ranks_send_slices_to_the_next_stage() -> None:
    sent = messages(Parallelism(tp=4, pp=2))["next_stage"]
    assert (sent.kind, sent.ranks, sent.size_bytes) == ("send_recv", 2, 80 * 1_000 * 2 / 4)
    assert "next_stage" not in messages(Parallelism(tp=4, pp=2), replace(INNER, has_head=True))
    assert "next_stage" not in messages(Parallelism(tp=4))


def test_logits_are_gathered_with_a_split_head() -> None:
    last = replace(INNER, has_head=True)
    [logits] = logits_collectives(Shard(MODEL, Parallelism(tp=4), last, "fp16"), 6.0)
    assert (logits.kind, logits.ranks) == ("all_gather", 4)
    assert logits.size_bytes == 6 * 5_000 * 2
    assert logits_collectives(Shard(MODEL, Parallelism(), last, "fp16"), 6.0) == ()
    assert logits_collectives(Shard(MODEL, Parallelism(tp=4), INNER, "fp16"), 6.0) == ()


def test_qk_norm_over_all_heads_needs_an_all_reduce() -> None:
    whole = Shard(load_model("minimax_m2_5"), Parallelism(tp=4), INNER, "fp16")
    sent = {one.name: one for one in collectives(whole, 80.0)}["qk_norm_sum"]
    assert (sent.kind, sent.ranks, sent.repeat) == ("all_reduce", 4, 4)
    assert sent.size_bytes == 80 * 2 * 4
    a_head = Shard(load_model("qwen3_32b"), Parallelism(tp=4), INNER, "fp16")
    assert "qk_norm_sum" not in {one.name for one in collectives(a_head, 80.0)}
