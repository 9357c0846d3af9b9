"""Draw the packages and their imports: `python -m docs.draw`.

Writes `docs/images/packages.svg`: one box per package, one band per layer, one line from a package
to each package that its files import. Every package imports `core`; those lines are omitted. The
layers are read from the contracts of import-linter (`pyproject.toml`), the lines from the code.
"""

from __future__ import annotations

import ast
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "packages.svg"
CORE = "simulators.core"
WIDTH, BAND, BOX, MARGIN = 1180, 96, 40, 130


def layers() -> list[list[str]]:
    """Return the packages of each layer, the highest layer first."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        contracts = tomllib.load(stream)["tool"]["importlinter"]["contracts"]
    contract = next(c["layers"] for c in contracts if c["type"] == "layers")
    named = [[package.strip(" ()") for package in line.split("|")] for line in contract]
    found = [[p for p in layer if (ROOT / p.replace(".", "/")).is_dir()] for layer in named]
    return [layer for layer in found if layer]


def package_of(module: str, packages: list[str]) -> str:
    """Return the package of a module; empty for modules of other distributions."""
    return next((p for p in packages if module == p or module.startswith(f"{p}.")), "")


def imported(file: Path) -> Iterator[str]:
    """Yield the names that a file imports with `from`, as dotted modules."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(packages: list[str]) -> list[tuple[str, str]]:
    """Return pairs of importing and imported package, without imports of `core`."""
    return [
        (package, target)
        for package in packages
        for target in sorted(
            {
                package_of(module, packages)
                for file in (ROOT / package.replace(".", "/")).rglob("*.py")
                for module in imported(file)
            }
            - {"", package, CORE}
        )
    ]


def picture() -> str:
    """Return the drawing as SVG."""
    bands = layers()
    packages = [package for band in bands for package in band]
    places = {
        package: (_x(i, len(band), row), 30 + BAND * row)
        for row, band in enumerate(bands)
        for i, package in enumerate(band)
    }
    drawn = [*_bands(bands), *_lines(arrows(packages), places)]
    drawn += [_box(package, *places[package]) for package in packages]
    height = 30 + BAND * len(bands)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
    head += 'font-family="sans-serif" font-size="13">'
    return "\n".join(
        [head, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *drawn, "</svg>\n"]
    )


def _x(position: int, packages: int, row: int) -> float:
    """Return the centre of a box; layers alternate left and right so that lines pass between."""
    shift = 0.32 * math.sin(2.4 * row) if packages < 4 else 0.0
    return MARGIN + (WIDTH - MARGIN) * (position + 0.5 + shift) / packages


def _bands(bands: list[list[str]]) -> list[str]:
    return [
        f'<text x="12" y="{30 + BAND * row + 25}" fill="#777">layer {len(bands) - 1 - row}</text>'
        f'<line x1="0" x2="{WIDTH}" y1="{30 + BAND * (row + 1) - 28}" '
        f'y2="{30 + BAND * (row + 1) - 28}" stroke="#eee"/>'
        for row in range(len(bands))
    ]


def _lines(found: list[tuple[str, str]], places: dict[str, tuple[float, float]]) -> list[str]:
    drawn = []
    for package, target in found:
        (x1, y1), (x2, y2) = places[package], places[target]
        middle = (y1 + BOX + y2) / 2.0
        drawn.append(
            f'<path d="M{x1:.0f} {y1 + BOX} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} '
            f'{x2:.0f} {y2}" fill="none" stroke="#4477aa" stroke-opacity="0.5" '
            f'stroke-width="1.4"><title>{package} imports {target}</title></path>'
        )
    return drawn


def _box(package: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x - 56:.0f}" y="{y:.0f}" width="112" height="{BOX}" rx="5" fill="#f4f7fb" '
        f'stroke="#4477aa"/><text x="{x:.0f}" y="{y + 25:.0f}" text-anchor="middle">'
        f"{package.removeprefix('simulators.')}</text>"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
