"""The benchmark of predictors: splits, entries, ranks, copied measurements and rebuilt tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from lab.benchmark import rebuild
from lab.benchmark.command import READERS, listed, main, subjects_of
from lab.benchmark.entries import (
    COLUMNS,
    BenchmarkEntry,
    EntryDeclaration,
    TrainedOn,
    checked,
    read_entry,
    shipped_entries,
)
from lab.benchmark.protocol import (
    ALL,
    GPU,
    LATER,
    MODEL,
    PROTOCOL,
    BenchmarkSubject,
    drawn,
    row_set_hash,
    rows_of,
)
from lab.benchmark.scoring import scores, suspicion
from lab.predictions.score import ENTRIES
from simulators.core.calibration import reference_folder
from simulators.core.errors import UserError

REFERENCE = reference_folder()
measured = pytest.mark.skipif(
    REFERENCE is None or not REFERENCE.is_dir(), reason="there is no measured data"
)
TASK = "collectives"
GPUS = ("a100_sxm", "h100_sxm", "b200_sxm", "l40s")


@pytest.fixture
def subjects() -> list[BenchmarkSubject]:
    """Messages whose time is proportional to their size, on four GPUs, half of them new."""
    return [
        BenchmarkSubject(
            row=f"{gpu} {size}",
            gpu=gpu,
            model=f"model {size % 3}",
            date="2026-05-01" if size % 2 else "2025-05-01",
            measured={"latency_s": 1e-6 * (10 + size)},
            sizes=(float(size),),
            lower_bound={"latency_s": 1e-6 * size},
        )
        for gpu in GPUS
        for size in range(1, 31)
    ]


@pytest.fixture
def rows(subjects: list[BenchmarkSubject]) -> pl.DataFrame:
    return rows_of(TASK, subjects)


def _entry(rows: pl.DataFrame, factor: float, trained: TrainedOn | None = None) -> BenchmarkEntry:
    table = rows.select(
        "task", "row", "figure", prediction=factor * pl.col("measured") * _wobble(rows.height)
    )
    declared = EntryDeclaration(tool="mine", trained={TASK: trained} if trained else {})
    return BenchmarkEntry(f"x{factor:g}", declared, checked(table, Path("mine.toml")))


def _wobble(count: int) -> pl.Series:
    return pl.Series(np.exp(np.linspace(-0.2, 0.2, count)))


def test_the_protocol_has_ten_tasks_with_a_reader_each() -> None:
    assert len(PROTOCOL.tasks) >= 10
    assert set(READERS) == set(PROTOCOL.tasks)


def test_splits_follow_from_days_and_names(rows: pl.DataFrame) -> None:
    assert rows[ALL].all()
    assert set(rows.filter(LATER)["date"]) == {"2026-05-01"}
    assert rows.filter(GPU)["gpu"].n_unique() == 1
    assert rows.filter(MODEL)["model"].n_unique() == 1


def test_the_hash_of_rows_changes_with_a_measurement_and_not_with_their_order(
    rows: pl.DataFrame,
) -> None:
    moved = rows.with_columns(measured=pl.col("measured") * 1.001)
    assert row_set_hash(rows) == row_set_hash(rows.reverse()) != row_set_hash(moved)


def test_a_sample_is_the_same_whatever_the_order(subjects: list[BenchmarkSubject]) -> None:
    some = [one.row for one in drawn(TASK, subjects)]
    assert some == [one.row for one in drawn(TASK, subjects[::-1])]


def test_the_better_entry_ranks_first_and_entries_that_saw_the_rows_have_no_rank(
    rows: pl.DataFrame,
) -> None:
    near, far = _entry(rows, 1.05), _entry(rows, 1.5)
    seen = _entry(rows, 1.01, TrainedOn(until="2026-06-01", gpus=(GPUS[0],), models=("no",)))
    found = {(one.split, one.entry): one for one in scores(rows, [far, near, seen])}
    assert found[ALL, "x1.05"].rank == 1
    assert found[ALL, "x1.5"].rank == 2
    assert found[ALL, "x1.01"].rank is None
    assert found[LATER, "x1.01"].has_seen
    assert not found[MODEL, "x1.01"].has_seen


def test_intervals_are_scored_by_coverage_and_width(rows: pl.DataFrame) -> None:
    entry = _entry(rows, 1.0)
    wide = entry.table.with_columns(
        low=pl.col("prediction") / np.e, high=pl.col("prediction") * np.e
    )
    [found, *_] = scores(rows, [BenchmarkEntry("mine", entry.declaration, wide)])
    assert found.coverage == 100.0
    assert found.log_width == pytest.approx(2.0)
    assert found.interval_score == pytest.approx(2.0)


def test_copies_of_the_measurements_are_flagged() -> None:
    log = np.linspace(-0.3, 0.3, 100)
    assert not suspicion(log)
    assert "exact" in suspicion(np.where(np.arange(100) < 30, 0.0, log))
    assert "all ratios" in suspicion(np.full(100, 0.2))


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"prediction": -1.0}, "a number above zero"),
        ({"low": 3.0}, "low <= prediction"),
        ({"split": "mine"}, "a split is one of"),
    ],
)
def test_a_wrong_prediction_is_reported_with_its_row(cells: dict[str, object], said: str) -> None:
    row = {"task": TASK, "row": "h100 1", "figure": "latency_s", "prediction": 2.0} | cells
    with pytest.raises(UserError, match="h100 1") as raised:
        checked(pl.DataFrame([row]), Path("mine.toml"))
    assert said in str(raised.value)


def test_baselines_learn_nothing_from_the_rows_of_a_split(
    subjects: list[BenchmarkSubject], rows: pl.DataFrame
) -> None:
    entry = read_entry("constant", {TASK: subjects}, rows)
    later = entry.of(TASK, LATER)["prediction"].unique().to_list()
    older = rows.filter(~pl.col(LATER))["measured"].median()
    assert later == [pytest.approx(older, rel=0.1)]
    nearest = read_entry("nearest", {TASK: subjects}, rows).of(TASK, ALL)
    sheet = read_entry("data_sheet", {TASK: subjects}, rows).of(TASK, ALL)
    assert nearest.height == sheet.height == rows.height


def test_an_outsiders_file_is_read_beside_its_declaration(
    tmp_path: Path, subjects: list[BenchmarkSubject], rows: pl.DataFrame
) -> None:
    table = rows.select("task", "row", "figure", prediction=pl.col("measured") * 1.2)
    table.write_csv(tmp_path / "mine.csv")
    declaration = tmp_path / "mine.toml"
    declaration.write_text(
        'tool = "mine 1"\npredictions = "mine.csv"\n[trained.training]\nuntil = "2026-01-01"\n'
    )
    entry = read_entry(str(declaration), {TASK: subjects}, rows)
    assert entry.table.columns == list(COLUMNS)
    [found, *_] = scores(rows, [entry])
    assert found.mean == pytest.approx(20.0)
    assert found.suspicion == "all ratios are x1.200"
    declaration.write_text('tool = "mine"\n[trained.cooking]\nuntil = "2026-01-01"\n')
    with pytest.raises(UserError, match="no task is called cooking"):
        read_entry(str(declaration), {TASK: subjects}, rows)
    declaration.write_text("name = 1\n")
    with pytest.raises(UserError, match="write tool"):
        read_entry(str(declaration), {TASK: subjects}, rows)


def test_at_least_eight_entries_come_with_the_laboratory() -> None:
    assert len(shipped_entries()) >= 8
    text = listed(list(PROTOCOL.tasks))
    assert all(name in text for name in ("constant", "nearest", "neusight", "sweeper_held_out"))


def test_requests_of_vllm_are_rebuilt_from_their_log(tmp_path: Path) -> None:
    folder = tmp_path / "LLMServingSim" / "bench" / "examples" / "RTX4090" / "Llama" / "vllm"
    folder.mkdir(parents=True)
    stamps = {"queued_ts": 5.0, "scheduled_ts": 5.5, "first_token_ts": 6.0, "last_token_ts": 9.0}
    counts = {"request_id": "bench-0", "input_toks": 10, "output_toks": 4, "arrival_time": 100.0}
    later = {name: value + 2.0 for name, value in stamps.items()}
    lines = [counts | stamps, counts | later | {"request_id": "bench-1", "arrival_time": 101.5}]
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main(["rebuild", str(tmp_path), "--reference", str(tmp_path / "tables")]) == 0
    table = pl.read_parquet(tmp_path / "tables" / "serving_modern" / "vllm_requests.parquet")
    assert table["run"].to_list() == ["RTX4090__Llama"] * 2
    assert table["arrival_s"].to_list() == [0.0, 1.5]
    assert table["first_token_s"].to_list() == [1.0, 3.0]
    with pytest.raises(UserError, match="no checkout"):
        rebuild.main([str(tmp_path / "tables")], tmp_path)


def test_latencies_of_ai_hub_are_rebuilt_from_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "qai_hub_models" / "models" / "albert"
    folder.mkdir(parents=True)
    (folder / "perf.yaml").write_text(
        "precisions:\n  float:\n    components:\n      Albert:\n        performance_metrics:\n"
        "          XR2:\n            tflite:\n              job_status: Passed\n"
        "              inference_time_milliseconds: 7.5\n"
    )
    [row] = rebuild.perf(tmp_path)["edge/qualcomm_aihub_perf.parquet"].to_dicts()
    assert (row["model"], row["device"], row["latency_s"]) == ("albert", "XR2", 0.0075)


@measured
@pytest.mark.slow
def test_stored_predictions_are_those_of_this_version() -> None:
    assert REFERENCE is not None
    stored = pl.read_csv(Path(ENTRIES.shipped) / "sweeper.csv", schema=COLUMNS)
    for task in ("kernels", "training", "closed_loop"):
        known = {
            (row, figure): value
            for row, figure, value in stored.filter(pl.col("task") == task)
            .select("row", "figure", "prediction")
            .rows()
        }
        for one in subjects_of(REFERENCE, [task])[task][:3]:
            for figure, (value, _, _) in one.answer("as shipped").items():
                assert known[one.row, figure] == pytest.approx(value, rel=1e-3)
