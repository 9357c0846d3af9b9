"""Where the files that travel with the package are: checkout, wheel, or the user's own."""

from __future__ import annotations

import os
from pathlib import Path

from simulators.core.errors import UnknownNameError, UserError

_HERE = Path(__file__).resolve().parent


def conf() -> Path:
    """Return the folder that holds `config.yaml`."""
    for folder in (_HERE.parent / "conf", _HERE / "_shipped" / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise UserError("conf/config.yaml is missing from the installation")


def space_folders() -> list[Path]:
    """Return the folders spaces are looked for in, the user's own first."""
    home = os.environ.get("SWEEPER_HOME")
    places = [
        Path("spaces"),
        *([Path(home) / "spaces"] if home else []),
        _HERE.parent / "spaces",
        _HERE / "_shipped" / "spaces",
    ]
    return [p for p in places if p.is_dir()]


def spaces() -> dict[str, Path]:
    """Return every space there is and its file; a user's own hides a shipped one."""
    found: dict[str, Path] = {}
    for folder in reversed(space_folders()):
        found |= {file.stem: file for file in sorted(folder.rglob("*.yaml"))}
    return dict(sorted(found.items()))


def find_space(name: str) -> Path:
    """Return the file of a space, by name or by path.

    Raises:
        UnknownNameError: there is none.
    """
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UserError(f"space '{name}': there is no such file")
        return Path(name)
    known = spaces()
    if name not in known:
        raise UnknownNameError("space", name, known, f"To add one, write spaces/{name}.yaml")
    return known[name]
