"""Iteration times from an operator table: exact at measured sizes, otherwise interpolated."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from simulators.core.errors import UserError
from simulators.core.fields import point_from
from simulators.serving.point import ServingPoint
from simulators.serving.prices.user_operator_times import ONCE
from simulators.serving.simulator import SIMULATOR, simulate

LAYERS = 32  # of Llama-3.1-8B

Rows = list[tuple[str, int, int, float]]


def rows(*, linear_ms: float = 0.01, decode_ms: float = 0.02, prefill_ms: float = 0.03) -> Rows:
    """Return a table in which a layer's linear operators grow with tokens and the rest is fixed."""
    linear = [(op, n, 0, linear_ms * n / 1000.0) for op in ONCE for n in (0, 8192)]
    decode = [("attn_decode", n, kv, decode_ms) for n in (1, 256) for kv in (0, 16384)]
    prefill = [("attn_prefill", past, c, prefill_ms) for past in (0, 16384) for c in (0, 8192)]
    return [*linear, *decode, *prefill]


def written(folder: Path, table: Rows, name: str = "ops.csv") -> str:
    columns = dict(zip(("op", "a", "b", "ms"), map(list, zip(*table, strict=True)), strict=True))
    file = folder / name
    write = pq.write_table if file.suffix == ".parquet" else pyarrow.csv.write_csv
    write(pa.table(columns), file)
    return str(file)


def alone(path: str, **changes: object) -> ServingPoint:
    """Return a request of 1,000 prompt and 11 output tokens that has the GPU for itself."""
    settings: dict[str, object] = {
        "model": "llama3_1_8b",
        "gpu": "h100_sxm",
        "requests": 1,
        "prompt_tokens": 1000,
        "output_tokens": 11,
        "iteration_table": path,
        "client.frontend": "none",
    }
    return point_from(ServingPoint, {**settings, **changes})


@pytest.mark.parametrize("name", ["ops.csv", "ops.parquet"])
def test_iteration_is_the_sum_of_measured_operators(tmp_path: Path, name: str) -> None:
    metrics = simulate(alone(written(tmp_path, rows(), name)))
    layer_ms = len(ONCE) * 0.01 * 1000 / 1000 + 0.03
    assert metrics.ttft_mean_s == pytest.approx(LAYERS * layer_ms / 1e3)
    layer_ms = len(ONCE) * 0.01 * 8 / 1000 + 0.02  # one token is priced as eight
    assert metrics.tpot_mean_s == pytest.approx(LAYERS * layer_ms / 1e3)
    assert metrics.measured_share == 1.0
    assert metrics.energy_j_per_token is None


def test_kv_cache_write_may_be_a_separate_operator(tmp_path: Path) -> None:
    saved = [*rows(), ("attn_kv_cache_save", 0, 0, 0.2), ("attn_kv_cache_save", 8192, 0, 0.2)]
    without, with_it = (
        simulate(alone(written(tmp_path, table, name))).tpot_mean_s
        for table, name in ((rows(), "a.csv"), (saved, "b.csv"))
    )
    assert with_it - without == pytest.approx(LAYERS * 0.2e-3)


def test_per_iteration_operators_are_not_multiplied_by_layers(tmp_path: Path) -> None:
    known = simulate(alone(written(tmp_path, rows()))).tpot_mean_s
    with_head = [*rows(), ("iteration", 0, 0, 0.5), ("iteration", 8192, 0, 0.5)]
    more = simulate(alone(written(tmp_path, with_head, "head.csv"))).tpot_mean_s
    assert more - known == pytest.approx(0.5e-3)


def test_pipeline_stages_split_the_layers(tmp_path: Path) -> None:
    path = written(tmp_path, rows())
    one, two = (simulate(alone(path, pp=pp)).ttft_mean_s for pp in (1, 2))
    assert two == pytest.approx(one)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([r for r in rows() if r[0] != "mlp_act"], "lacks mlp_act"),
        ([r for r in rows() if r[:3] != ("attn_decode", 1, 0)], "attn_decode has no time at a"),
        ([*rows(), ("add", -8, 0, 1.0)], "not negative"),
    ],
)
def test_unusable_operator_table_raises_a_user_error(
    tmp_path: Path, table: Rows, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        simulate(alone(written(tmp_path, table)))


def test_sizes_beyond_the_table_are_flagged(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no time is known for a batch of 9000 tokens"):
        simulate(alone(written(tmp_path, rows()), scheduler="vllm", prompt_tokens=9000))


def test_all_reduce_rows_are_required_with_tensor_parallelism(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lacks all_reduce"):
        simulate(alone(written(tmp_path, rows()), tp=2))
    reduced = [*rows(), ("all_reduce", 0, 0, 0.1), ("all_reduce", 8192, 0, 0.1)]
    metrics = simulate(alone(written(tmp_path, reduced, "two.csv"), tp=2))
    layer_ms = len(ONCE) * 0.01 * 8 / 1000 + 0.02 + 2 * 0.1
    assert metrics.tpot_mean_s == pytest.approx(LAYERS * layer_ms / 1e3)


def test_operator_table_is_a_dependency_of_the_point(tmp_path: Path) -> None:
    path = written(tmp_path, rows())
    assert SIMULATOR.reads("iteration_table", path) == (Path(path),)
    assert SIMULATOR.reads("iteration_table", "") == ()
