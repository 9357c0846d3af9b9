"""Commands print a result, or one paragraph about the error."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path

import polars as pl
import pytest

from sweeper.__main__ import main
from sweeper.store import parquet
from tests.conftest import ROOT

TOY = """\
# Where in the plane is it best?
simulator: tests.toys.quadratic
axes:
  x: 1..6
  y: [1, 2, 3]
  n: [1, 13]
derived: {twice: "x * 2"}
constraints: ["x + y < 9"]
"""
ROUGH = """\
simulator: tests.toys.trouble
axes: {n: 0..19, raises: 5, dies: 7, healed: cure}
"""


@pytest.fixture
def bench(workplace: Path) -> Path:
    """A folder with two spaces of its own."""
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "toy.yaml").write_text(TOY)
    (workplace / "spaces" / "rough.yaml").write_text(ROUGH)
    return workplace


def run(command: str) -> int:
    return main(shlex.split(command))


def answer(command: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """Run a command and return its standard output."""
    capsys.readouterr()
    assert run(command) == code
    return capsys.readouterr().out


SWEEP = "+space=toy plot=false"


def test_sweep_prints_front_knee_and_files(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(SWEEP, capsys)
    assert "Pareto front: cost_usd min, gain max" in text
    assert "34 rows (17 infeasible, 17 ok); 34 simulated in" in text
    assert "17 points: unlucky (example: 13)." in text
    assert "Knee" in text
    assert "Knee's time by evidence: 100 % fitted." in text
    assert "`explain`" not in text, "this simulator does not explain"
    assert "Next   python -m sweeper show toy" in text
    rows = pl.scan_parquet("outputs/toy/results/*/*.parquet").collect()
    assert rows.height == 34
    assert not [c for c in text if unicodedata.category(c) == "Cc" and c != "\n"]
    again = answer(SWEEP, capsys)
    assert "0 simulated" in again


def test_json_output_is_complete(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(answer(f"{SWEEP} output=json", capsys))
    assert found["rows"] == {"infeasible": 17, "ok": 17}
    assert found["points"] == 36
    assert found["removed"] == {"x + y < 9": 2}
    # On paper: cost (x-3)² + (y-4)², gain xy, with y <= 3 and x + y < 9.
    assert [(d["x"], d["y"]) for d in found["front"]] == [(3.0, 3.0), (4.0, 3.0), (5.0, 3.0)]
    assert found["knee"] in found["front"]


def test_overrides_and_samplers_change_the_points(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = (
        ("'space.axes.x=[2,3]' 'space.axes.n=1'", 6),
        ("'space.constraints=[]' space.axes.n=1", 18),
        ("sampler=random sampler.points=5", 5),
        ("sampler=sobol sampler.points=4 sampler.seed=2", 4),
        ("'space.axes.y=1..2 lin 3' 'space.axes.bonus=[null,1.5]' space.axes.n=1", 6 * 3 * 2),
        ("engine=inline 'space.objectives={twice: max}'", 34),
        ("~space.constraints", 36),
        ("\"space.where=gain > 4 AND label = 'plain'\" ~space.constraints", 36),
        ("space.where=null", 34),
    )
    for number, (words, rows) in enumerate(cases):
        found = json.loads(answer(f"{SWEEP} output=json outputs=o{number} {words}", capsys))
        assert sum(found["rows"].values()) == rows, words


def test_printed_key_finds_the_design(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(answer(f"{SWEEP} output=json", capsys))
    key = found["knee"]["key"]
    text = answer(f"show toy {key[:10]}", capsys)
    assert f"x                        {found['knee']['x']:g} m" in text


def test_queries_read_the_results_of_a_sweep(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(SWEEP, capsys)
    front = json.loads(answer("pareto toy --min cost_usd --where 'gain > 13' --json", capsys))
    assert [(d["x"], d["y"], d["equivalents"]) for d in front] == [(5.0, 3.0, 1)]
    groups = json.loads(answer("pareto toy --max gain --per y --json", capsys))
    assert [(d["y"], d["gain"]) for d in groups] == [(1.0, 6.0), (2.0, 12.0), (3.0, 15.0)]
    assert "Pareto front: cost_usd min, gain max" in answer("pareto toy", capsys)
    run("pareto toy --write front.csv")
    assert pl.read_csv("front.csv").height == 3


@pytest.mark.parametrize(("rows", "shown"), [(1, 1), (2, 2), (3, 3), (20, 3)])
def test_front_is_limited_to_the_requested_rows(
    bench: Path, capsys: pytest.CaptureFixture[str], rows: int, shown: int
) -> None:
    answer(SWEEP, capsys)
    text = answer(f"pareto toy --rows {rows}", capsys)
    lines = text[: text.index("Knee")].strip().splitlines()
    table = [line for line in lines if line.startswith(("*  ", "   ")) and "design" not in line]
    assert len(table) == shown
    assert sum(line.startswith("*") for line in table) == 1


def test_plan_prints_the_work_of_a_sweep(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(answer("plan +space=toy output=json", capsys))
    wanted = {"points": 36, "removed": {"x + y < 9": 2}, "picked": 34, "answered": 0, "to_do": 34}
    assert {k: before[k] for k in wanted} == wanted
    assert not Path("outputs").exists()
    answer(SWEEP, capsys)
    after = json.loads(answer("plan +space=toy output=json", capsys))
    assert (after["answered"], after["to_do"]) == (34, 0)
    grown = json.loads(answer("plan +space=toy 'space.axes.x=1..7' output=json", capsys))
    assert (grown["answered"], grown["to_do"]) == (34, 2)


def test_plan_of_a_sample_counts_missing_points(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = "+space=toy sampler=random sampler.points=9 output=json"
    found = json.loads(answer(f"{sample} plot=false", capsys))
    again = json.loads(answer(f"plan {sample}", capsys))
    assert (again["picked"], again["answered"], again["to_do"]) == (9, 9, 0)
    other = json.loads(answer(f"plan {sample} sampler.seed=5", capsys))
    assert other["answered"] + other["to_do"] == 9
    assert other["to_do"] > 0
    after = json.loads(answer(f"{sample} plot=false sampler.seed=5", capsys))
    assert sum(after["rows"].values()) == sum(found["rows"].values()) + other["to_do"]
    rest = json.loads(answer("plan +space=toy output=json", capsys))
    assert rest["to_do"] == 34 - sum(after["rows"].values())


def test_failures_become_rows_and_can_be_retried(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = answer("+space=rough plot=false", capsys, code=3)
    assert "20 rows (1 error, 1 infeasible, 18 ok)" in text
    assert "1 point: ValueError" in text
    assert answer("+space=rough plot=false", capsys)  # nothing new failed
    Path("cure").touch()
    text = answer("+space=rough plot=false failures.retry=true", capsys)
    assert "20 rows (1 infeasible, 19 ok); 1 simulated in" in text


def test_run_records_its_configuration(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(SWEEP, capsys)
    (folder,) = Path("outputs/toy/runs").iterdir()
    assert json.loads((folder / "config.json").read_text())["name"] == "toy"
    assert "polars" in json.loads((folder / "versions.json").read_text())
    assert pl.read_parquet(folder / "front.parquet").height == 3


def test_help_and_listings_succeed(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "+space=NAME" in answer("--help", capsys)
    assert "toy                      Where in the plane is it best?" in answer(
        "list spaces", capsys
    )
    assert "h100_sxm" in answer("list gpu", capsys)
    assert json.loads(answer("list samplers --json", capsys))["samplers"]
    assert "2 points excluded by constraint x + y < 9" in answer("show toy", capsys)
    assert "hbm_bytes_per_s" in answer("show h100_sxm", capsys)
    assert "metrics" in answer("show serving", capsys)
    assert "trtllm_cutlass" in answer("list runtimes", capsys)
    runtime = answer("show trtllm_cutlass", capsys)
    assert "layer_s" in runtime


BAD_SPACES = {
    "typo": "simulator: tests.toys.quadratic\naxis: {x: 1}\n",
    "listed": "- simulator\n",
    "torn": "simulator: [\n",
    "bare": "axes: {x: 1}\n",
    "lost": "simulator: nowhere.to_be_found\naxes: {x: 1}\n",
    "void": "simulator: tests.toys.quadratic\naxes: {x: 1..4}\nconstraints: ['x > 9']\n",
    "aim": "simulator: tests.toys.aimless\naxes: {n: 1..4}\n",
    "binary": "\udcff\udcfe",
    "gpu": "simulator: kernels\naxes: {gpu: h100_smx, op: gemm}\n",
    "refuse": "simulator: tests.toys.trouble\naxes: {n: 0..9, refuses: 4}\n",
    "sheet": "simulator: tests.toys.reader\naxes: {sheet: gone.txt}\n",
}

MISTAKES = [
    ("+space=toi", "unknown space 'toi'; did you mean 'toy'?"),
    ("space=toi", "unknown space 'toi'"),
    ("+space=", "unknown space ''"),
    ("+space=nowhere/toy.yaml", "there is no such file"),
    ("sampler=grid", "which space? Write +space=NAME"),
    ("plan", "which space?"),
    ("frobnicate", "there is no command 'frobnicate'"),
    ("praeto toy", "did you mean 'pareto'?"),
    ("+space=toy engine=rey", "unknown engine 'rey'; did you mean 'ray'?"),
    ("+space=toy sampler=sobel", "unknown sampler 'sobel'; did you mean 'sobol'?"),
    ("+space=toy sampler.points=5", "there is no key 'sampler.points'"),
    ("+space=toy sampler=random sampler.point=5", "did you mean 'points'?"),
    ("+space=toy sampler=random sampler.points=many", "sampler.points"),
    ("+space=toy sampler=random sampler.points=-5", "at least one point"),
    ("+space=toy sampler=random sampler.seed=-1", "a seed is not negative"),
    ("+space=toy engine=ray engine.actor=2", "did you mean 'actors'?"),
    ("+space=toy ouputs=x", "did you mean 'outputs'?"),
    ("+space=toy output=xml", "write output=text or output=json"),
    ("+space=toy failures.max=few", "failures.max=few: write a whole number or null"),
    ("+space=toy failures.retri=true", "did you mean 'retry'?"),
    ("+space=toy failures.retry=perhaps", "failures.retry"),
    ("+space=toy plot=perhaps", "plot=perhaps: write true or false"),
    ("+space=toy +failures.most=3", "there is no key 'failures.most'\nKnown: retry, max"),
    ("+space=toy +outputz=3", "there is no key 'outputz'; did you mean 'output'?"),
    ("+space=toy +sampler.seed=3", "there is no key 'sampler.seed'"),
    ("+space=toy +engine.wages=3", "there is no key 'engine.wages'"),
    ("+space=toy --verbose", "a sweep has no option '--verbose'"),
    ("+space=toy hello", "'hello' is not an override; write key=value"),
    ("+space=toy space.axes.xx=1", "axis 'xx' is not an input"),
    ("+space=toy +space.axes.xx=1", "axis 'xx' is not an input"),
    ("+space=toy space.axes.x=1,2", "write 'space.axes.x=[1,2]'"),
    ("+space=toy space.axes.x=[1,2", "quotes around the whole override"),
    ("+space=toy space.axes.x=[]", "axis 'x' has no values"),
    ("+space=toy space.axes.x=8..1", "runs backwards"),
    ("+space=toy space.axes.x=abc", "'abc' is not a number"),
    ("+space=toy space.axes.n=1.5", "1.5 is not a whole number"),
    ("+space=toy space.axes.x=null", "cannot be null"),
    ("+space=toy '+space.axes.x.from=1'", "axis 'x'"),
    ("+space=toy 'space.constraints=[q < 4]'", "space.constraints=[q < 4] cannot be read"),
    ("+space=toy 'space.constraints=[\"q < 4\"]'", "names 'q', which is no column"),
    ("+space=toy 'space.constraints=[\"x <\"]'", "is not an SQL expression"),
    ("+space=toy 'space.constraints=[\"x > 99\"]'", "the space is empty"),
    ("+space=toy 'space.objectives={cost: min}'", "objective 'cost' is neither a metric"),
    ("+space=toy 'space.objectives={gain: most}'", "from metrics to min or max"),
    ("+space=toy 'space.objectives={label: min}'", "objective 'label' is not a number"),
    ("+space=toy 'space.derived={x: y}'", "has the name of an axis or a metric"),
    ("+space=toy space.simulator=servng", "unknown simulator 'servng'"),
    ("+space=toy space.axess.x=3", "there is no key 'space.axess"),
    ("+space=typo", "a space has no key 'axis'; did you mean 'axes'?"),
    ("+space=listed", "listed.yaml is not a space"),
    ("+space=torn", "torn.yaml is not valid YAML"),
    ("+space=bare", "a space needs `simulator:`"),
    ("+space=lost", "unknown simulator 'nowhere.to_be_found'"),
    ("+space=void", "the space is empty: the constraints remove all 4 points"),
    ("+space=aim", "names no `objectives:`"),
    ("+space=binary", "cannot be read"),
    ("+space=gpu", "unknown gpu 'h100_smx'; did you mean 'h100_sxm'?"),
    ("+space=refuse engine=inline", "n=4 means nothing"),
    ("+space=sheet", "gone.txt"),
    ("+space=rough failures.max=0", "1 points failed, more than failures.max=0"),
    ("+space=toy outputs=occupied", "occupied"),
    ("list gpuz", "unknown kind 'gpuz'; did you mean 'gpus'?"),
    ("list gpus --jsn", "did you mean '--json'?"),
    ("list gpus a b", "unrecognized arguments: b"),
    ("show h100_smx", "did you mean 'h100_sxm'?"),
    ("show nothing_like_it", "unknown name 'nothing_like_it'"),
    ("show", "the following arguments are required: name"),
    ("show toy 0123", "there are no results of 'toy'"),
    ("pareto", "required: name"),
    ("pareto toy", "there are no results of 'toy'"),
    ("pareto toy --outputs nowhere", "there are no results of 'toy'"),
    ("pareto toy --limit 3", "unrecognized arguments"),
    ("pareto toy --rows many", "'many' is not a whole number"),
    ("toy", "to run a sweep: +space=toy"),
    ("plan toy", "Write +space=toy"),
    ("+space=toy sampler.points=4", "sampler 'grid' has no options"),
    (f"trust {'n' * 300}", "is too long for a file name"),
    (f"+space={'n' * 300}", "unknown space"),
    ("accuracy kernel", "unknown group of checks 'kernel'; did you mean 'kernels'?"),
]


@pytest.mark.parametrize(("command", "complaint"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_user_error_prints_one_paragraph(
    bench: Path, capsys: pytest.CaptureFixture[str], command: str, complaint: str
) -> None:
    for name, text in BAD_SPACES.items():
        Path("spaces", f"{name}.yaml").write_text(text, errors="surrogateescape")
    Path("occupied").write_text("a file, no folder")
    assert run(command) == 2
    captured = capsys.readouterr()
    paragraph = captured.err[captured.err.index("sweeper: ") :]
    assert complaint in paragraph
    assert "Traceback" not in paragraph
    assert len(paragraph.strip().splitlines()) <= 6


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("pareto toy --min gian", "there is no column 'gian'; did you mean 'gain'?"),
        ("pareto toy --min label", "objective 'label' is not a number"),
        ("pareto toy --per gpu", "per: there is no column 'gpu'"),
        ("pareto toy --where 'gian > 1'", "there is no column 'gian'; did you mean 'gain'?"),
        ("pareto toy --where 'gain >'", "is not an SQL expression"),
        ("pareto toy --where 'label > 1'", "cannot be computed"),
        ("pareto toy --where 'gain > 9999'", "no feasible design of 'toy' meets gain > 9999"),
        ("pareto toy --write nowhere/front.csv", "nowhere/front.csv"),
        ("verify toy --rows -3", "--rows: -3: write at least 1"),
        ("pareto toy --rows 0", "--rows: 0: write at least 1"),
        ("query toy cheapest cost_usd --slo 'gain > 1' --rows -1", "write at least 1"),
        ("query toy epsilon --epsilon -1", "--epsilon -1: write a number above zero"),
        ("compare toy knee --log nofile", "nofile cannot be read: No such file"),
        ("show toy zz", "no key starts with 'zz'"),
    ],
)
def test_query_error_prints_one_paragraph(
    bench: Path, capsys: pytest.CaptureFixture[str], command: str, complaint: str
) -> None:
    answer(SWEEP, capsys)
    assert run(command) == 2
    captured = capsys.readouterr().err
    assert complaint in captured
    assert "Traceback" not in captured


def test_empty_run_does_not_hide_an_earlier_run(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spaces", "mine.yaml").write_text(
        "simulator: serving\n"
        "axes: {model: llama3_1_8b, gpu: h100_sxm, qps: [1, 2], fidelity: analytic}\n"
    )
    asked = "+space=mine plot=false engine=inline"
    text = answer(asked, capsys)
    assert "No design has a value for ttft_p50_s, " in text  # a steady state has means alone
    text = answer(f"{asked} 'space.objectives={{ttft_p50_s: min}}'", capsys)
    assert "No feasible design has a value for ttft_p50_s, so there is no front" in text
    assert run("pareto mine") == 2
    assert "has a value for ttft_p50_s" in capsys.readouterr().err
    assert run("+space=mine plot=false engine=inline space.axes.qps=-1") == 2
    assert "must be positive" in capsys.readouterr().err
    assert "Pareto front" in answer("pareto mine --min ttft_mean_s --min tpot_mean_s", capsys)


def test_every_command_names_a_damaged_part(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(SWEEP, capsys)
    (part,) = Path("outputs/toy/results").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-9])
    for command in ("pareto toy", SWEEP):
        with pytest.warns(UserWarning, match=f"{part.name} is damaged"):
            run(command)
    assert "34 simulated in" in capsys.readouterr().out
    assert "34 rows" in answer(SWEEP, capsys)


@pytest.mark.parametrize("name", ["definition.json", "config.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"space": 3}'])
def test_damaged_metadata_file_is_named(
    bench: Path, capsys: pytest.CaptureFixture[str], name: str, content: str
) -> None:
    answer(SWEEP, capsys)
    (side,) = Path("outputs/toy/runs").rglob(name)
    side.write_text(content)
    assert run("pareto toy") == 2
    said = capsys.readouterr().err
    assert "is damaged" in said
    assert "34 rows" in answer(SWEEP, capsys)


def test_spaces_are_found_by_path(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my-own space.v2.yaml").write_text(TOY)
    found = json.loads(answer("'+space=my-own space.v2.yaml' plot=false output=json", capsys))
    assert found["rows"] == {"infeasible": 17, "ok": 17}


def test_results_under_a_url_are_found_by_url_or_name(
    bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{bench}/far"
    assert run(f"{SWEEP} outputs={url}") == 0
    assert not (bench / "runs").exists()
    capsys.readouterr()
    for words in ("pareto toy", f"pareto toy --outputs {url}", "show toy knee", "verify toy"):
        assert run(words) == 0
        assert capsys.readouterr().out
    assert run(f"pareto toy --outputs file://{bench}/further") == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "nothing://x"])
def test_unreachable_url_gives_a_message(
    bench: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert run(f"{SWEEP} outputs={url}") == 2
    assert url in capsys.readouterr().err


class Silent:
    """A library of file systems whose stores never answer."""

    class FileSystem:
        @staticmethod
        def from_uri(url: str) -> None:
            threading.Event().wait(1.0)
            raise OSError(url)


def test_unresponsive_store_times_out(
    bench: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_ANSWER_S", 0.05)
    monkeypatch.setattr(parquet, "pafs", Silent)
    assert run(f"{SWEEP} outputs=gs://nobody/x") == 2
    assert "gs://nobody/x/toy" in (said := capsys.readouterr().err)
    assert "no answer within 0.05 s" in said
    assert run(f"{SWEEP} outputs=") == 2


def test_running_sweep_cannot_start_twice(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    answer(SWEEP, capsys)
    (lock,) = Path("outputs/toy").glob(".*.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run(SWEEP) == 2
    assert "already running" in capsys.readouterr().err


WITHOUT_RAY = """
import sys
from sweeper.__main__ import main
code = main({words!r})
heavy = {{"ray", "matplotlib", "scipy", "numba", "torch"}} & set(sys.modules)
print("heavy:", sorted(heavy), "code:", code, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "plan +space=toy",
        "pareto toy --per y",
        *(pytest.param(c, marks=pytest.mark.slow) for c in ("list", "show toy", "pareto toy")),
    ],
)
def test_queries_import_no_large_dependency(
    bench: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    if command.startswith("pareto"):
        answer(SWEEP, capsys)
    script = WITHOUT_RAY.format(words=shlex.split(command))
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(bench)},
    )
    assert done.stderr.strip().endswith("heavy: [] code: 0"), done.stderr


def test_axis_of_a_union_is_suggested(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("+space=llama70b_h100 space.axes.schedulr=vllm") == 2
    assert "did you mean 'scheduler'?" in capsys.readouterr().err
