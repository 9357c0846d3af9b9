"""Draw the rooms of the house from the imports of its code: `python -m docs.draw`.

Writes `docs/images/rooms.svg`: one box a room, one band a floor, one line from a room to each room
that its files import. All rooms import `core`, so those lines are left out. The floors are those
that `lint-imports` holds (`pyproject.toml`); the lines are what the code does.
"""

from __future__ import annotations

import ast
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
CORE = "simulators.core"
WIDTH, BAND, BOX, MARGIN = 1180, 96, 40, 130


def floors() -> list[list[str]]:
    """Return the rooms of each floor, the highest first."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        contracts = tomllib.load(stream)["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    floors = [[room.strip(" ()") for room in layer.split("|")] for layer in layers]
    found = [[r for r in floor if (ROOT / r.replace(".", "/")).is_dir()] for floor in floors]
    return [floor for floor in found if floor]


def room_of(module: str, rooms: list[str]) -> str:
    """Return the room a module belongs to; empty if it is none of the house's."""
    return next((r for r in rooms if module == r or module.startswith(f"{r}.")), "")


def imported(file: Path) -> Iterator[str]:
    """Yield the modules a file imports from the house."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(rooms: list[str]) -> list[tuple[str, str]]:
    """Return which room imports which, without those that import `core`."""
    return [
        (room, target)
        for room in rooms
        for target in sorted(
            {
                room_of(module, rooms)
                for file in (ROOT / room.replace(".", "/")).rglob("*.py")
                for module in imported(file)
            }
            - {"", room, CORE}
        )
    ]


def picture() -> str:
    """Return the drawing as SVG."""
    levels = floors()
    rooms = [room for level in levels for room in level]
    places = {
        room: (_x(i, len(level), row), 30 + BAND * row)
        for row, level in enumerate(levels)
        for i, room in enumerate(level)
    }
    drawn = [*_bands(levels), *_lines(arrows(rooms), places)]
    drawn += [_box(room, *places[room]) for room in rooms]
    height = 30 + BAND * len(levels)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
    head += 'font-family="sans-serif" font-size="13">'
    return "\n".join(
        [head, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *drawn, "</svg>\n"]
    )


def _x(position: int, rooms: int, row: int) -> float:
    """Return where a room stands: floors lean left and right, so that lines pass between rooms."""
    lean = 0.32 * math.sin(2.4 * row) if rooms < 4 else 0.0
    return MARGIN + (WIDTH - MARGIN) * (position + 0.5 + lean) / rooms


def _bands(levels: list[list[str]]) -> list[str]:
    return [
        f'<text x="12" y="{30 + BAND * row + 25}" fill="#777">floor {len(levels) - 1 - row}</text>'
        f'<line x1="0" x2="{WIDTH}" y1="{30 + BAND * (row + 1) - 28}" '
        f'y2="{30 + BAND * (row + 1) - 28}" stroke="#eee"/>'
        for row in range(len(levels))
    ]


def _lines(found: list[tuple[str, str]], places: dict[str, tuple[float, float]]) -> list[str]:
    drawn = []
    for room, target in found:
        (x1, y1), (x2, y2) = places[room], places[target]
        bend = (y1 + BOX + y2) / 2.0
        drawn.append(
            f'<path d="M{x1:.0f} {y1 + BOX} C{x1:.0f} {bend:.0f} {x2:.0f} {bend:.0f} '
            f'{x2:.0f} {y2}" fill="none" stroke="#4477aa" stroke-opacity="0.5" '
            f'stroke-width="1.4"><title>{room} imports {target}</title></path>'
        )
    return drawn


def _box(room: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x - 56:.0f}" y="{y:.0f}" width="112" height="{BOX}" rx="5" fill="#f4f7fb" '
        f'stroke="#4477aa"/><text x="{x:.0f}" y="{y + 25:.0f}" text-anchor="middle">'
        f"{room.removeprefix('simulators.')}</text>"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
