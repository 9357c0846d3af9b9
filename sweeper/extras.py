"""Loads libraries that only some features need, such as those of the extra `search`."""

from __future__ import annotations

import importlib
from typing import Any

from simulators.core.errors import UserError


def load_extra(module: str, what: str, extra: str = "search", instead: str = "") -> Any:
    """Return an imported module of an optional dependency.

    Raises:
        UserError: it is not installed; the message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        hint = f", or {instead}" if instead else ""
        raise UserError(f'{what} needs {library}: pip install "sweeper[{extra}]"{hint}') from error
