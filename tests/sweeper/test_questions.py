"""Queries, plots, schema and verification on the command line."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from pathlib import Path

import jsonschema
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulators.core.contract import load_simulator
from simulators.core.folder import SIMULATORS
from sweeper import DesignSpace, Sweep
from sweeper.__main__ import main
from sweeper.commands.query import KINDS, warn_of_version
from sweeper.commands.setup import space_schema
from sweeper.report.answers import latest
from sweeper.space import shipped_files
from sweeper.space.space_file import read_space
from sweeper.store.parquet import KEY

SPACE = """\
simulator: tests.toys.quadratic
axes: {x: 1..8, y: [1, 2, 3], n: [1, 2]}
where: whole < 60
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a small sweep has been run."""
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "spaces").mkdir()
        (folder / "spaces" / "toy.yaml").write_text(SPACE)
        assert main(["+space=toy", "plot=false", "engine=inline"]) == 0
    return folder


def run(command: str, folder: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(shlex.split(command)) == code
    captured = capsys.readouterr()
    return captured.err if code == 2 else captured.out


ASKED = {
    "cheapest": "cost_usd --slo 'gain > 5'",
    "best-per": "cost_usd --level n",
    "near": "knee",
    "fleet": "--load 3,9",
}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"fleet"}))
def test_every_query_writes_a_table_and_a_file(
    kind: str, swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"query toy {kind} {ASKED.get(kind, '')}"
    printed = run(command, swept, capsys)
    assert len(printed.splitlines()) >= 2 or printed == "none\n"
    table = json.loads(run(f"{command} --json", swept, capsys))
    for name in ("t.csv", "t.parquet", "t.md", "t.json"):
        run(f"{command} --write {name}", swept, capsys)
        assert (swept / name).stat().st_size > 0
    assert pl.read_parquet(swept / "t.parquet").height == len(table)


def test_cheapest_query_returns_the_minimum_cost(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(run(f"query toy cheapest {ASKED['cheapest']} --json", swept, capsys))
    costs = [row["cost_usd"] for row in found]
    assert costs == sorted(costs)
    assert costs[0] == 1.0  # x = 3, y = 3, n = 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("query toy sensitivty", "did you mean 'sensitivity'"),
        ("query toy cheapest nonsense --slo 'gain > 1'", "no column 'nonsense'"),
        ("query toy best-per cost_usd", "best-per needs --level"),
        ("query toy fleet", "fleet needs --load"),
        ("query toy fleet --load 3", "fleet needs designs that serve a load"),
        ("query toy fleet --load 3,x", "write numbers separated by commas"),
        ("query toy sensitivity --write t.xls", "use a file name that ends in .csv, .parquet"),
        ("report toy --plot pie --file p.png", "there is no picture 'pie'"),
        ("report toy --plot front --file p.gif", "write a file that ends in .png"),
        ("report toy --plot heat --file p.png --x nonsense", "no column 'nonsense'"),
        ("verify nothing", "there are no results of 'nothing' under outputs\nResults"),
    ],
)
def test_mistakes_are_explained(
    command: str, said: str, swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--slo" not in command and "cheapest" in command:
        command += " --slo 'gain > 1'"
    assert said in run(command, swept, capsys, code=2)


@pytest.mark.parametrize(
    "kind", ["front", "parallel", "heat", "curves", "sensitivity", "waterfall"]
)
def test_every_picture_is_drawn(kind: str, swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    run(f"report toy --plot {kind} --file {kind}.svg", swept, capsys)
    assert (swept / f"{kind}.svg").read_text().rstrip().endswith("</svg>")


def test_rows_of_another_version_are_reported_by_verify(
    swept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(swept)
    last = latest("toy", "outputs")
    warn_of_version(last)
    assert capsys.readouterr().err == ""
    older = dataclasses.replace(last.store.definition, version=0)
    warn_of_version(
        dataclasses.replace(last, store=dataclasses.replace(last.store, definition=older))
    )
    assert "The rows of toy come from version 0 of " in capsys.readouterr().err


def test_verify_confirms_bit_equal_results(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "48 of 48 rows simulated again: bit-identical" in run("verify toy", swept, capsys)


def test_verify_finds_a_changed_row(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(swept, tmp_path / "copy")
    part = next((tmp_path / "copy" / "outputs" / "toy").rglob("results/**/*.parquet"))
    table = pq.read_table(part)
    gains = table["gain"].to_pylist()
    gains[3] += 1e-9
    place = table.schema.get_field_index("gain")
    changed = table.set_column(place, table.schema.field("gain"), [gains])
    unsealed = {k: v for k, v in table.schema.metadata.items() if k.decode() != KEY}
    pq.write_table(changed.replace_schema_metadata(unsealed), part)
    assert "1 of 48 rows differ" in run("verify toy", tmp_path / "copy", capsys, code=1)


@pytest.mark.parametrize("damage", ["gone", "doubled", "other"])
def test_verify_reports_lost_and_doubled_rows(
    damage: str, swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(swept, tmp_path / "copy")
    part = next((tmp_path / "copy" / "outputs" / "toy").rglob("results/**/*.parquet"))
    table = pq.read_table(part).replace_schema_metadata({})
    part.unlink()
    if damage == "doubled":
        pq.write_table(pa.concat_tables([table, table.slice(0, 2)]), part)
    if damage == "other":  # another part of the same size was copied over it
        pq.write_table(table.take([*range(3, len(table)), 4, 5, 6]), part)
    said = run("verify toy", tmp_path / "copy", capsys, code=1)
    lost, strange = {"gone": (len(table), 0), "doubled": (0, 2), "other": (3, 3)}[damage]
    assert f"{lost} rows are lost, and {strange} are repeated or in a part of other points" in said


def test_schema_lists_every_simulator_and_axis() -> None:
    schema = space_schema()
    cases = {c["if"]["properties"]["simulator"]["const"]: c["then"] for c in schema["allOf"]}
    assert set(cases) == set(SIMULATORS.names())
    serving = cases["serving"]["properties"]["axes"]["properties"]
    assert "h100_sxm" in serving["gpu"]["anyOf"][0]["examples"]
    assert serving["tp"]["default"] == 1


def test_every_shipped_space_validates_against_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(space_schema())
    for file in shipped_files.spaces().values():
        assert not list(validator.iter_errors(read_space(file))), file


def test_rows_of_a_sweep_validate_against_the_versioned_schema_of_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    axes = {"op": "gemm", "gpu": ["l4", "h100_sxm"], "dtype": ["fp16", "fp4"], "m": [1, 64]}
    space = DesignSpace.of("kernels", **axes, n=4096, k=4096)
    rows = Sweep.of(space, outputs=str(tmp_path), engine="inline").run().collect()
    assert main(["schema", "--rows", "kernels"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["version"] == load_simulator("kernels").version
    assert schema["properties"]["latency_s"]["unit"] == "s"
    assert set(rows.columns) <= set(schema["properties"])
    validator = jsonschema.Draft202012Validator(schema)
    for row in rows.to_dicts():
        validator.validate(row)
