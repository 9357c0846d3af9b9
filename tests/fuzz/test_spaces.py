"""Arbitrary space files end with a message and exit code 2, never with a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sweeper.__main__ import main

GOOD = {
    "simulator": "tests.toys.quadratic",
    "axes": "{x: 1..3, n: [1, 2]}",
    "constraints": '["x > 1"]',
    "objectives": "{cost_usd: min}",
}
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
)
NASTY = [
    "12",
    "null",
    "[]",
    "{}",
    "[[1]]",
    "{null: 1}",
    "{1: 2}",
    "3",
    "os.path",
    "sys",
    "{x: {y: 1}}",
    "&a [*a]",
    "&a {x: *a}",
    "x",
    "[null]",
    "[[x, n, 1]]",
    "[{x: 1}]",
    "[3]",
    "{x: 1e400}",
    "{x: .nan}",
    "{x: [1, [2]]}",
    "{x: capacity 1e-300..1e300}",
    "{x: 1e-300..1e300}",
    "{n: 1" + "0" * 400 + "}",
    "{label: [" + "y" * 5000 + "]}",
    "{x: '1..1e9'}",
    "{n: pow2 1..1e308}",
    "{n: true}",
    "'${x}'",
    "{cost_usd: up}",
    "{nothing: min}",
    "['x >']",
    "['AVG(x) > 1']",
    "['x + 1']",
    "!!python/name:os.system",
    "{d: x}",
    "{d: nothing}",
    "{x: 1 .. log 3}",
    '"\\0"',
    "[" * 40 + "]" * 40,
    "2020-01-01",
    "{? [1] : 2}",
]
KEYS = [*GOOD, "zip", "union", "derived", "slo", "where", "nonsense"]


def ends_well(text: str, capsys: pytest.CaptureFixture[str], *more: str) -> int:
    """Run a space, check the format of its messages and return the exit code."""
    Path("spaces").mkdir(exist_ok=True)
    Path("spaces/mine.yaml").write_text(text)
    code = main(["+space=mine", "plot=false", "engine=inline", *more])
    said = capsys.readouterr().err
    assert code in (0, 2), text
    assert "Traceback" not in said
    assert "This is a bug in sweeper" not in said, f"{text}\n{said}"
    if code == 2:
        assert 0 < len(said.strip().splitlines()) < 12, said
    return code


def written(**changed: str) -> str:
    return "\n".join(f"{key}: {value}" for key, value in (GOOD | changed).items())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", NASTY, ids=lambda v: v[:20])
@pytest.mark.parametrize("key", ["axes", "zip", "union", "simulator", "constraints"])
def test_key_of_a_wrong_type_gives_a_message(
    workplace: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    ends_well(written(**{key: value}), capsys)


@pytest.mark.parametrize(
    "text", [BOMB, "", "- 1", "12", "a: &a {b: *a}", "\x00", "a: [", "null: 1"]
)
def test_file_without_a_space_gives_a_message(
    workplace: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert ends_well(text, capsys) == 2


@pytest.mark.parametrize(
    "word",
    [
        "engine=[1]",
        "failures=1",
        "failures=null",
        "sampler={a: 1}",
        "space=3",
        "space.axes=12",
        "space.axes=null",
        "space.union=3",
        "space.zip=[[1]]",
        "space.where=[1]",
        "outputs=",
        "plot=3",
        "sampler=random",
        "space.objectives=3",
        "space=null",
        "space.derived=[1]",
        "outputs=null",
    ],
)
def test_override_of_a_wrong_type_gives_a_message(
    workplace: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    ends_well(written(), capsys, word)


@pytest.mark.parametrize("seed", range(40))
def test_mutated_spaces_give_rows_or_messages(
    workplace: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311 - dice
    text = written(**{dice.choice(KEYS): dice.choice(NASTY) for _ in range(dice.randint(1, 2))})
    if dice.random() < 0.3:
        at = dice.randrange(len(text))
        text = text[:at] + dice.choice("[]{}:&*!\"'\n\t-%@") + text[at + 1 :]
    ends_well(text, capsys)
