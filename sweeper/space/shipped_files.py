"""Finds files of spaces and options in the user's folders, the checkout or the wheel."""

from __future__ import annotations

import os
from pathlib import Path

from simulators.core.errors import UnknownNameError, UserError

_PACKAGE = Path(__file__).resolve().parents[1]
_SHIPPED = (_PACKAGE.parent, _PACKAGE / "_shipped")
"""Folders that may hold `conf/` and `spaces/`: a checkout, then a wheel."""
SCENARIOS = "scenarios"
"""The folder of spaces whose files name figures to reproduce."""


def conf() -> Path:
    """Return the folder that holds `config.yaml`."""
    for folder in _SHIPPED:
        if (folder / "conf" / "config.yaml").is_file():
            return folder / "conf"
    raise UserError("conf/config.yaml is missing from the installation")


def spaces() -> dict[str, Path]:
    """Return every space and its file, without scenarios; a user's file hides a shipped one."""
    return {name: f for name, f in _files().items() if f.parent.name != SCENARIOS}


def scenarios() -> dict[str, Path]:
    """Return every scenario and its file; a user's file hides a shipped one."""
    return {name: f for name, f in _files().items() if f.parent.name == SCENARIOS}


def sites() -> dict[str, Path]:
    """Return every site configuration and its file; a user's file hides a shipped one."""
    return {
        file.stem: file
        for folder in _searched()
        for file in (folder / "conf" / "site").glob("*.yaml")
    }


def _searched() -> tuple[Path, ...]:
    home = os.environ.get("SWEEPER_HOME")
    return (*reversed(_SHIPPED), *([Path(home)] if home else []), Path())


def _files() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in _searched():
        files = sorted((folder / "spaces").rglob("*.yaml"))
        found |= {file.stem: file for file in files if is_name(file.stem)}
    return dict(sorted(found.items()))


def is_name(name: str) -> bool:
    """Return whether results can be kept in a folder of this name: printable and not hidden.

    >>> is_name("my space"), is_name(".."), is_name("../mine"), is_name("")
    (True, False, False, False)
    """
    return name.isprintable() and "/" not in name and name[:1] not in ("", ".")


def check_name(name: str) -> None:
    """Raise `UserError` for an impossible name of a space."""
    if not is_name(name):
        raise UserError(
            f"'{name}' is no name of a space: results are kept in a folder of that "
            "name, so it is of printable letters without `/`, and begins with no dot"
        )


def find_space(name: str) -> Path:
    """Return the file of a space, by name or by path.

    Raises:
        UserError: there is no such file, or results cannot be kept under its name.
    """
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UserError(f"space '{name}': there is no such file")
        check_name(Path(name).stem)
        return Path(name)
    files = _files()
    if name in files:
        return files[name]
    raise UnknownNameError("space", name, files, f"To add one, write spaces/{name}.yaml")
