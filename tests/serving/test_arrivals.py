"""Requests drawn from distributions or read from traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulators.core.errors import UnknownNameError, UserError
from simulators.core.fields import check_point, updated
from simulators.serving.demand.requests import Requests, requests_of
from simulators.serving.demand.workloads import load_trace, load_workload
from simulators.serving.point import ServingPoint

BASE = ServingPoint(model="", gpu="", workload="chat", qps=2.0, requests=4000)


def drawn(**changes: object) -> Requests:
    point = updated(BASE, changes)
    check_point(point)
    return requests_of(point)


def test_higher_rate_compresses_the_same_arrivals() -> None:
    slow, fast = drawn(qps=1.0), drawn(qps=8.0)
    assert np.allclose(slow.arrival_s, 8.0 * fast.arrival_s)
    assert np.array_equal(slow.prompt_tokens, fast.prompt_tokens)
    assert np.array_equal(slow.output_tokens, fast.output_tokens)


def test_fewer_requests_are_a_prefix_of_more_requests() -> None:
    assert np.array_equal(drawn(requests=100).arrival_s, drawn().arrival_s[:100])


def test_seeds_draw_different_requests() -> None:
    assert not np.array_equal(drawn(seed=1).arrival_s, drawn().arrival_s)


@pytest.mark.parametrize(
    ("process", "variation"),
    [("poisson", 1.0), ("even", 0.0)],
)
def test_interarrival_times_have_the_requested_rate_and_variation(
    process: str, variation: float
) -> None:
    gaps = np.diff(drawn(requests=100_000, **{"arrivals.process": process}).arrival_s)
    assert gaps.mean() == pytest.approx(0.5, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.06 * max(variation, 0.1))


def test_chat_outputs_are_longer_than_code_outputs() -> None:
    assert (
        drawn(workload="chat").output_tokens.mean()
        > 5 * drawn(workload="code").output_tokens.mean()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qps": 0.0}, "qps is 0"),
        ({"qps": None}, "qps is needed"),
        ({"requests": 0}, "at least 1"),
        ({"seed": -1}, "seed is -1"),
        ({"arrivals.process": "poison"}, "did you mean 'poisson'"),
        ({"workload": "nowhere.csv"}, "No such file"),
    ],
)
def test_invalid_arrival_option_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        drawn(**changes)


def test_default_sharegpt_lengths_have_published_means() -> None:
    asked = drawn(workload="sharegpt_v3", requests=20_000)
    assert asked.prompt_tokens.mean() == pytest.approx(219, rel=0.05)  # as of 1,000 printed ones
    assert asked.output_tokens.mean() == pytest.approx(197, rel=0.07)
    assert np.quantile(asked.output_tokens, 0.25) < 30


def test_workload_lengths_are_scaled_to_the_stated_means() -> None:
    fixed = {"prompt_tokens": 200, "output_tokens": 150}
    own = drawn(workload="sharegpt")
    ours = drawn(workload="sharegpt", **{"lengths.shape": "as_workload"}, **fixed)
    for name, mean in fixed.items():
        ratio = getattr(ours, name) / getattr(own, name)
        assert getattr(ours, name).mean() == pytest.approx(mean, rel=0.005)
        assert np.ptp(ratio[getattr(own, name) > 100]) < 0.02
    assert np.ptp(drawn(workload="sharegpt", **fixed).prompt_tokens) == 0


def test_sglang_client_lengths_match_numpy_draws() -> None:
    fixed = {"prompt_tokens": 100, "output_tokens": 40, "lengths.spread": 0.5, "requests": 50}
    ours = drawn(**{"lengths.shape": "bench_serving"}, seed=3, **fixed)
    generator = np.random.RandomState(3)
    assert ours.prompt_tokens.tolist() == generator.randint(50, 101, size=50).tolist()
    assert ours.output_tokens.tolist() == generator.randint(20, 41, size=50).tolist()
    with pytest.raises(UserError, match="needs both prompt_tokens and output_tokens"):
        drawn(**{"lengths.shape": "bench_serving"}, **fixed | {"output_tokens": 0})


def test_outputs_are_truncated_at_the_maximum_length() -> None:
    own, ours = (
        drawn(workload="sharegpt", **{"lengths.max_output_tokens": most}) for most in (0, 300)
    )
    assert own.output_tokens.max() > 300
    assert np.array_equal(ours.output_tokens, np.minimum(own.output_tokens, 300))
    assert np.array_equal(ours.prompt_tokens, own.prompt_tokens)


def test_unknown_workload_gets_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'chat'"):
        drawn(workload="chta")


def test_custom_workload_is_a_small_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "[prompt]\ntokens = [100]\n"
        "[[output]]\nprompt_up_to = 50\ntokens = [1]\n[[output]]\ntokens = [7]\n"
    )
    prompt, output = load_workload(str(file)).draw(np.array([[0.2, 0.9], [0.8, 0.1]]))
    assert prompt.tolist() == [100, 100]
    assert output.tolist() == [7, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[prompt]\ntokens = [1]\n", r"at least one \[\[output\]\]"),
        ("[[output]]\ntokens = [1]\n", r"\[prompt\] .*tokens"),
        ("[prompt]\ntokens = [0, 5]\n[[output]]\ntokens = [1]\n", r">= 1.0 - at `\$.tokens"),
        ("[prompt]\ntokens = [5, 2]\n[[output]]\ntokens = [1]\n", "must not fall"),
        ("[prompt]\ntokens = ['a']\n[[output]]\ntokens = [1]\n", "Expected `float`, got `str`"),
        ("[prompt]\ntokens = [1]\n[[output]]\nprompt_up_to = 3\ntokens = [1]\n", "must rise"),
        (
            "[prompt]\nprobability = [0, 0.5]\ntokens = [1, 2]\n[[output]]\ntokens = [1]\n",
            "rise from 0 to 1",
        ),
    ],
)
def test_malformed_workload_raises_a_user_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        load_workload(str(file))


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_three_trace_layouts_give_the_same_requests(tmp_path: Path) -> None:
    azure, own, mooncake = (tmp_path / f"t{suffix}" for suffix in (".csv", ".parquet", ".jsonl"))
    azure.write_text(
        AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    pq.write_table(
        pa.table(
            {"arrival_s": [5.0, 9.314579], "prompt_tokens": [374, 396], "output_tokens": [44, 109]}
        ),
        own,
    )
    mooncake.write_text(
        '{"timestamp": 1000, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n\n'
        '{"timestamp": 5314.579, "input_length": 396, "output_length": 109, "hash_ids": [2]}\n'
    )
    for file in (azure, own, mooncake):
        trace = load_trace(str(file))
        assert trace.arrival_s == pytest.approx([0.0, 4.314579], abs=1e-6)
        assert trace.prompt_tokens.tolist() == [374, 396]
        assert trace.output_tokens.tolist() == [44, 109]


def test_trace_arrivals_are_kept_or_rescaled(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n10,5,5\n11,5,5\n14,5,5\n")
    settings = {"workload": str(file), "requests": 0}
    assert drawn(**settings, qps=None).arrival_s.tolist() == [0.0, 1.0, 4.0]
    assert drawn(**settings, qps=2.0).arrival_s.tolist() == [0.0, 0.25, 1.0]
    assert drawn(workload=str(file), requests=2, qps=None).arrival_s.tolist() == [0.0, 1.0]


def test_trace_without_arrivals_uses_drawn_arrivals(tmp_path: Path) -> None:
    file = tmp_path / "lengths.parquet"
    pq.write_table(pa.table({"prompt_tokens": [1, 2, 3], "output_tokens": [4, 5, 6]}), file)
    requests = drawn(workload=str(file), requests=0)
    assert np.array_equal(requests.arrival_s, drawn(requests=3).arrival_s)
    assert requests.output_tokens.tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "a,b\n1,2\n", "header must name"),
        ("t.csv", AZURE, "no rows"),
        ("t.csv", AZURE + "yesterday,1,1\n", "row 2, column TIMESTAMP: 'yesterday', not a time"),
        ("t.csv", AZURE + "2023-11-16,1,1\n2023-11-17,x,1\n", "row 3, column ContextTokens: 'x'"),
        ("t.csv", AZURE + "2023-11-16,1\n", "row 2, column GeneratedTokens: empty"),
        ("t.csv", AZURE + "2023-11-16,1,0\n", "row 2: output tokens are 0"),
        ("t.csv", AZURE + "2023-11-16,-4,1\n", "row 2: prompt tokens are -4"),
        (
            "t.csv",
            AZURE + "2023-11-17,1,1\n2023-11-16,1,1\n",
            "not in time order: row 3 arrives before row 2",
        ),
        ("t.csv", "arrival_s,prompt_tokens,output_tokens\nnan,1,1\n", "row 2: arrives at nan"),
        (
            "t.jsonl",
            '{"timestamp": 9, "input_length": 1, "output_length": 1}\n\n'
            '{"timestamp": 1, "input_length": 1, "output_length": 1}\n',
            "row 3 arrives before row 1",
        ),
        ("t.jsonl", "{\n", "row 1: "),
        ("t.jsonl", '{"timestamp": 1}\n', "row 1: 'input_length' is missing"),
        ("t.parquet", "no parquet", "cannot be read"),
    ],
)
def test_malformed_trace_error_names_the_row(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        load_trace(str(file))


def test_parquet_trace_with_missing_columns_or_nulls_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"arrival_s": [0.0], "prompt_tokens": [1]}), file)
    with pytest.raises(UserError, match="lacks the column output_tokens"):
        load_trace(str(file))
    pq.write_table(pa.table({"prompt_tokens": [1, None], "output_tokens": [1, 1]}), file)
    with pytest.raises(UserError, match="row 2: prompt_tokens is empty"):
        load_trace(str(file))
    pq.write_table(pa.table({"prompt_tokens": ["many"], "output_tokens": [1]}), file)
    with pytest.raises(UserError, match="prompt_tokens is of type string, not a number"):
        load_trace(str(file))


def test_few_requests_of_a_long_trace_take_little_memory(tmp_path: Path) -> None:
    file, rows = tmp_path / "t.parquet", 6_000_000
    columns = {"arrival_s": np.zeros(rows), "prompt_tokens": np.full(rows, 100)}
    pq.write_table(pa.table({**columns, "output_tokens": np.full(rows, 9)}), file)
    before = pa.total_allocated_bytes()
    trace = load_trace(str(file), 100)
    held_bytes = sum(c.nbytes for c in (trace.prompt_tokens, trace.output_tokens))
    assert held_bytes + pa.total_allocated_bytes() - before < 10e6
    assert drawn(workload=str(file), requests=100, qps=None).prompt_tokens.tolist() == [100] * 100
    assert load_trace(str(file)).prompt_tokens.size == rows


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_only_the_first_rows_of_a_long_trace_are_read(tmp_path: Path, suffix: str) -> None:
    file, rows = tmp_path / f"t{suffix}", 140_000
    lines = {
        ".csv": "0,5,5\n",
        ".jsonl": '{"timestamp": 0, "input_length": 5, "output_length": 5}\n',
    }
    header = "arrival_s,prompt_tokens,output_tokens\n" if suffix == ".csv" else ""
    file.write_text(header + lines[suffix] * rows + "no row\n")
    assert 100 <= load_trace(str(file), 100).prompt_tokens.size < rows
    with pytest.raises(UserError, match=f"row {rows + 1 + bool(header)}"):
        load_trace(str(file))


def test_edited_trace_is_reloaded(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    for tokens in (5, 66):
        file.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,{tokens},1\n")
        assert load_trace(str(file)).prompt_tokens[0] == tokens


@pytest.mark.parametrize("process", ["mmpp", "diurnal"])
def test_time_varying_rate_keeps_the_mean(process: str) -> None:
    pattern = {
        "arrivals.burst_ratio": 8.0,
        "arrivals.burst_s": 2.0,
        "arrivals.calm_s": 6.0,
        "arrivals.swing": 1.0,
        "arrivals.period_s": 100.0,
    }
    arrival = drawn(requests=100_000, **{"arrivals.process": process}, **pattern).arrival_s
    assert np.all(np.diff(arrival) >= 0.0)
    assert 100_000 / arrival[-1] == pytest.approx(2.0, rel=0.05)
    shorter = drawn(requests=500, **{"arrivals.process": process}, **pattern).arrival_s
    assert np.array_equal(shorter, arrival[:500])


def test_degenerate_arrival_patterns_are_poisson() -> None:
    even = drawn().arrival_s
    for process in ("mmpp", "diurnal"):
        same = drawn(
            **{"arrivals.process": process, "arrivals.burst_ratio": 1.0, "arrivals.swing": 0.0},
        ).arrival_s
        assert same == pytest.approx(even, rel=1e-9)


def test_mmpp_counts_match_the_mmpp_cookbook() -> None:
    """Index of dispersion of counts over long windows, from Fischer and Meier-Hellstern (1993)."""
    pattern = {"arrivals.burst_ratio": 9.0, "arrivals.burst_s": 1.0, "arrivals.calm_s": 3.0}
    arrival = drawn(requests=400_000, **{"arrivals.process": "mmpp"}, qps=3.0, **pattern).arrival_s
    calm, burst = 1.0, 9.0  # their mean over time is 3
    leave_calm, leave_burst = 1.0 / 3.0, 1.0
    both = leave_calm + leave_burst
    dispersion = 1.0 + 2.0 * (burst - calm) ** 2 * leave_calm * leave_burst / (
        both**2 * (burst * leave_calm + calm * leave_burst)
    )
    counts = np.bincount((arrival // 200.0).astype(np.int64))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(dispersion, rel=0.15)


def test_diurnal_rate_is_high_in_the_first_half_of_the_period() -> None:
    pattern = {"arrivals.swing": 0.8, "arrivals.period_s": 10.0}
    arrival = drawn(requests=200_000, **{"arrivals.process": "diurnal"}, **pattern).arrival_s
    first_half = np.mean(arrival % 10.0 < 5.0)
    assert first_half == pytest.approx(0.5 + 0.8 / np.pi, abs=0.005)


def test_invalid_arrival_pattern_is_named() -> None:
    with pytest.raises(
        UserError, match=r"burst_s is 0; it must be positive\narrivals\.swing is 1\.5"
    ):
        drawn(
            **{"arrivals.process": "mmpp", "arrivals.swing": 1.5, "arrivals.burst_s": 0.0},
        )


OUTPUT = '\n[[output]]\ndistribution = "uniform"\nleast = 1\nmost = 5\n'


def lengths_of(folder: Path, prompt: str) -> np.ndarray:
    file = folder / "own.toml"
    file.write_text(f"[prompt]\n{prompt}{OUTPUT}")
    return drawn(workload=str(file), requests=50_000).prompt_tokens


def test_lengths_follow_the_stated_distribution(tmp_path: Path) -> None:
    uniform = lengths_of(tmp_path, 'distribution = "uniform"\nleast = 10\nmost = 19')
    counts = np.bincount(uniform)
    assert (counts[:10] == 0).all()
    assert counts[10:] == pytest.approx(np.full(10, 5000), rel=0.06)
    settings = 'distribution = "lognormal"\nmean = 1000\nsigma = 0.6\nleast = 16\nmost = 100000'
    lognormal = lengths_of(tmp_path, settings)
    assert lognormal.mean() == pytest.approx(1000.0, rel=0.01)
    assert np.log(lognormal).std() == pytest.approx(0.6, rel=0.01)
    capped = lengths_of(tmp_path, settings.replace("100000", "1500"))
    assert np.array_equal(capped, np.minimum(lognormal, 1500))
    zipf = lengths_of(tmp_path, 'distribution = "zipf"\nexponent = 1.2\nleast = 1\nmost = 1000')
    counts = np.bincount(zipf)
    for token in (2, 4, 8):
        assert counts[1] / counts[token] == pytest.approx(token**1.2, rel=0.1)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ('distribution = "normal"', "did you mean 'lognormal'"),
        ('distribution = "uniform"\nleast = 9\nmost = 5', "least <= most, has least 9, most 5"),
        ('distribution = "uniform"\nleast = 0\nmost = 5', r">= 1.*least"),
        ('distribution = "zipf"\nleast = 1\nmost = 5', "missing required field `exponent`"),
        ('distribution = "lognormal"\nleast = 1\nmost = 9\nmean = -1\nsigma = 1', r"> 0.*mean"),
    ],
)
def test_invalid_length_distribution_raises_a_user_error(
    tmp_path: Path, prompt: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        lengths_of(tmp_path, prompt)
