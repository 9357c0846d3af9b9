"""What a notebook shows: short spaces, fronts whose first columns matter, pictures, answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.core.errors import UserError
from sweeper import DesignSpace, Sweep, ask, explain, latest, pareto_front, plot
from sweeper.__main__ import main

SPACE = DesignSpace.of("kernels", op="gemm", gpu=["l4", "h100_sxm"], m=[1, 64], n=4096, k=4096)
OBJECTIVES = {"latency_s": "min", "energy_j": "min"}


def test_a_printed_space_has_at_most_ten_lines() -> None:
    names = ("tp", "pp", "replicas", "max_batch", "chunk_size", "qps", "requests", "seed")
    axes = dict.fromkeys(names, "1..40")
    text = repr(DesignSpace.of("serving", model="llama3_1_8b", gpu="l4", **axes))
    assert len(text.splitlines()) <= 10
    assert max(map(len, text.splitlines())) <= 100
    assert "tp: 1, 2, 3, 4, ... (40)" in text
    assert "and 1 more: seed" in text


def test_a_front_begins_with_what_varies_and_the_objectives(tmp_path: Path) -> None:
    results = Sweep.of(SPACE, outputs=str(tmp_path), engine="inline").run()
    front = pareto_front(results, OBJECTIVES)
    assert front.columns[:4] == ["gpu", "m", "latency_s", "energy_j"]


def test_a_plot_marks_all_designs_and_the_front(tmp_path: Path) -> None:
    results = Sweep.of(SPACE, outputs=str(tmp_path), engine="inline").run()
    picture = plot(results, OBJECTIVES)
    front = pareto_front(results, OBJECTIVES)
    assert picture.svg.count("<circle") == len(SPACE) + len(front)
    assert picture._repr_svg_() == picture.svg
    with pytest.raises(UserError, match="two objectives, not 1"):
        plot(results, {"latency_s": "min"})


def test_ask_is_a_function_whose_answer_reads_as_that_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"gpus": 1, "engine": "vllm", "requests": 20, "outputs": str(tmp_path)}
    answer = ask(model="llama3_1_8b", gpu=["h100", "l40s"], run_with="inline", **flags)
    assert capsys.readouterr().out == ""
    assert answer.is_found
    assert answer.design is not None
    assert answer.design["gpu"] == "l40s"
    assert "P(meets SLO)" in repr(answer)
    assert len(answer.results.collect()) >= 2
    with pytest.raises(UserError, match="unknown gpu"):
        ask(model="llama3_1_8b", gpu="h1000", **flags)


def test_results_of_a_run_display_as_a_table_and_a_chart_and_a_design_as_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    axes = "{model: llama3_1_8b, gpu: [l4, h100_sxm], batch: [1, 8]}"
    (tmp_path / "passes.yaml").write_text(f"simulator: composition\naxes: {axes}\n")
    words = ["+space=passes.yaml", "engine=inline", "plot=false"]
    assert main(words) == 0
    last = latest("passes", "outputs")
    shown = last._repr_html_()
    assert "4 ok" in shown
    assert shown.count("<circle") == last.plot().svg.count("<circle") >= 5
    tree = explain("passes")
    longest = max(tree.contributions, key=lambda row: row.time_s)
    assert f"{longest.name}: " in repr(tree)
    assert tree._repr_html_().count("<li>") == repr(tree).count("│  ├─ ") >= 3
