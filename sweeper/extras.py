"""The distribution's name, and optional libraries, such as those of the extra `search`."""

from __future__ import annotations

import importlib
from typing import Any

from simulators.core.errors import UserError

DISTRIBUTION = "mlsweeper"
"""Name in the package index; the import package and the command are `sweeper`."""


def load_extra(module: str, what: str, extra: str = "search", instead: str = "") -> Any:
    """Import and return a module of an optional library, which the feature `what` needs.

    Raises:
        UserError: the library is not installed; the message names the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        hint = f", or {instead}" if instead else ""
        raise UserError(
            f'{what} needs {library}: pip install "{DISTRIBUTION}[{extra}]"{hint}'
        ) from error
