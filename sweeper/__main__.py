"""Entry point of the command line: `sweeper COMMAND ...` or `sweeper +space=NAME OVERRIDE ...`.

Commands are imported when called, so that queries import neither Hydra nor Ray.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path

from simulators.core.errors import UserError, suggestion
from simulators.core.folder import is_trusted
from sweeper.commands import COMMANDS, HELP
from sweeper.commands.flags import examples, help_parser
from sweeper.extras import DISTRIBUTION
from sweeper.space.shipped_files import spaces
from sweeper.text import printable, quoting

_WIDEST = 2000
"""Characters of a line of an error message."""
COLLECTED = (100_000, 20, 20)
"""Thresholds of garbage collection: imports create many objects that stay."""
_PACKAGES = ("sweeper", "simulators", "deploy", "planning", "formats", "lab")
USAGE = HELP.replace(
    "{commands}", "\n".join(f"  {name:12} {one['about']}" for name, one in COMMANDS.items())
)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; user errors are printed without a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "_ARGCOMPLETE" in os.environ:
        from sweeper.commands.setup import complete_line

        words = complete_line()
    if argv is None and not sys.flags.safe_path:
        _search_current_folder_last()
    if argv is None:
        gc.set_threshold(*COLLECTED)
        sys.stdout, sys.stderr = quoting(sys.stdout), quoting(sys.stderr)
    _convert_signals()
    # Matrices are small: more threads would only wait for each other. numpy reads this once.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    warnings.formatwarning = lambda message, *_: f"sweeper: {message}\n"
    try:
        return _dispatch(words)
    except UserError as error:
        sys.stdout.flush()
        print(f"sweeper: {_with_short_lines(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as ended:
        print(
            "\nsweeper: stopped; results so far are kept, and the same command resumes the sweep",
            file=sys.stderr,
        )
        return 128 + (ended.args[0] if ended.args else signal.SIGINT)
    except BrokenPipeError:  # `| head` closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except BaseException as error:
        # A panic inside polars is no `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if os.environ.get("SWEEPER_TRACEBACK"):
            raise
        sys.stdout.flush()
        print(f"sweeper: {_defect(error)}", file=sys.stderr)
        return 2


def _search_current_folder_last() -> None:
    """Import modules of the current folder last, and only if the folder is trusted."""
    here = Path.cwd()
    if sys.path and Path(sys.path[0]) == here:  # `python -m` put it there
        del sys.path[0]
    if is_trusted(here):
        sys.path.append(str(here))  # for the user's own simulators


def _with_short_lines(said: str) -> str:
    lines = printable(said).splitlines()
    return "\n".join(x if len(x) <= _WIDEST else f"{x[:_WIDEST]} ..." for x in lines)


def _convert_signals() -> None:
    """Make SIGTERM and SIGHUP raise `KeyboardInterrupt`, as Ctrl-C does."""

    def end(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP on purpose
                signal.signal(number, end)


def version() -> str:
    """Return the version of the installed distribution."""
    import importlib.metadata  # loads much, and few commands need it

    return importlib.metadata.version(DISTRIBUTION)


def _defect(error: BaseException) -> str:
    """Return the message of an unexpected error: type, place, and how to report the bug."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if any(f"{os.sep}{h}{os.sep}" in f.filename for h in _PACKAGES)]
    last = (ours or frames)[-1]
    said = " ".join(str(error).split())[:200]
    return (
        f"{type(error).__name__}: {said}\n"
        f"This is a bug in sweeper {version()} ({Path(last.filename).name}, line "
        f"{last.lineno}).\n"
        "Please report the command and its files. SWEEPER_TRACEBACK=1 prints the traceback"
    )


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"sweeper {version()}")
        return 0
    first, rest = words[0], words[1:]
    if "=" in first or first.startswith(("+", "-", "~")):
        return _run_command("run.main", words)
    if first not in COMMANDS:
        raise _unknown_command(first, rest)
    if first == "plan" and {"-h", "--help"} & set(rest):
        print(f"{USAGE}\nFor example:\n{examples(first)}")
        return 0
    if {"-h", "--help"} & set(rest) and (parser := help_parser(first, rest)):
        parser.print_help()
        return 0
    return _run_command(COMMANDS[first]["run"], rest)


def _run_command(command: str, words: list[str]) -> int:
    module, _, function = command.rpartition(".")
    try:
        code: int = getattr(importlib.import_module(f"sweeper.commands.{module}"), function)(words)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UserError(f"'{str(error.filename)[:40]}...' is too long for a file name") from error
    return code


def _unknown_command(first: str, rest: list[str]) -> UserError:
    known = spaces()
    meant = next((w for w in (first, *rest) if w in known), "NAME")
    hint = "" if first in known else suggestion(first, COMMANDS)
    return UserError(
        f"there is no command '{first}'{hint}\n"
        f"Commands: {', '.join(COMMANDS)}; to run a sweep: +space={meant}"
    )


if __name__ == "__main__":
    sys.exit(main())
