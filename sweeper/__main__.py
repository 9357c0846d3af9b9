"""The command line: a first word without `=` is a command, everything else is a sweep's overrides.

Each command is loaded when it is called, so that queries import neither Hydra nor Ray.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from importlib.metadata import version
from pathlib import Path

from simulators.core.errors import UserError, suggestion
from simulators.core.modules import is_trusted
from sweeper.commands import COMMANDS
from sweeper.commands.flags import examples
from sweeper.space.shipped_files import spaces
from sweeper.terminal import printable, quoting

_WIDEST = 2000
"""Letters of a line of what is said about a mistake."""
_HOUSES = ("sweeper", "simulators", "deploy", "planning", "formats", "lab")
USAGE = """\
python -m sweeper ask --model M --gpu G --gpus N --qps Q
                          the cheapest deployment, by flags alone
python -m sweeper +space=NAME [key=value ...]
                          run or resume a sweep; ends with its Pareto front
python -m sweeper plan +space=NAME
                          points, removed, answered already; time and bytes

Of a sweep that has been run (KEY: a design's first digits, or `knee`):
python -m sweeper pareto NAME [--min A --max B --where SQL --per COLUMN --json]
python -m sweeper query NAME KIND     sensitivity, cheapest, best-per, near ...
python -m sweeper show NAME KEY       one design
python -m sweeper explain NAME KEY    where its time, energy and memory go
python -m sweeper compare NAME KEY KEY   two designs, or one and --log FILE
python -m sweeper export NAME KEY     the command or manifest that deploys it
python -m sweeper report NAME         one HTML page: answer, front, what matters
python -m sweeper plot NAME KIND FILE    front, heat, curves ... as PNG or SVG
python -m sweeper verify NAME         simulate a sample again; compare each bit
python -m sweeper watch NAME          a sweep that runs elsewhere; --page FILE
python -m sweeper prune NAME          few files of many; no row is lost
python -m sweeper merge FOLDER ...    add results of other folders, or URLs

python -m sweeper list [KIND [WORD]]  what there is, or of it what has the word
python -m sweeper show NAME           what a space, gpu, simulator ... is
python -m sweeper schema              JSON Schema of space files, for an editor
python -m sweeper validate [ROOM ...]    accuracy against measured data
python -m sweeper calibrate NAME      a board or phone from a few measured rows
python -m sweeper transfer            kernels of one GPU, on another
python -m sweeper trust [FOLDER ...] let code in folders of yours run
python -m sweeper doctor              load all facts, run every simulator
python -m sweeper completion bash|zsh|fish   lets your shell complete all this

`sweeper` is the same as `python -m sweeper`; COMMAND --help says more, with
examples. Overrides, as in Hydra:
  'space.axes.tp=[4,8]'  'space.axes.qps=0.5..32 log 13'
  sampler=random sampler.points=500   sampler=sobol   engine=inline
  engine=ray engine.actors=4   outputs=/data/sweeps   output=json
  failures.retry=true   plot=false

First steps, from what there is to an answer:
  python -m sweeper list models llama
  python -m sweeper list gpus h
  python -m sweeper ask --model llama3_1_8b --gpu h100,l40s --gpus 4 --qps 2
  python -m sweeper +space=quickstart
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; mistakes are explained, not traced."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None and not sys.flags.safe_path:
        _search_here_last()
    if argv is None:
        sys.stdout, sys.stderr = quoting(sys.stdout), quoting(sys.stderr)
    _end_alike()
    # Matrices are small here: more threads would mostly wait for each other. numpy reads it once.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    warnings.formatwarning = lambda message, *_: f"sweeper: {message}\n"
    try:
        return _dispatch(words)
    except UserError as error:
        sys.stdout.flush()
        print(f"sweeper: {_shortened(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as ended:
        print(
            "\nsweeper: stopped; what was written is kept, and the same command goes on",
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


def _search_here_last() -> None:
    """Look for modules in the current folder after all others, if it is trusted, else never."""
    here = Path.cwd()
    if sys.path and Path(sys.path[0]) == here:  # `python -m` put it there
        del sys.path[0]
    if is_trusted(here):
        sys.path.append(str(here))  # for simulators of one's own


def _shortened(said: str) -> str:
    """Return a message as a terminal can show it: what it repeats of a file may be as long."""
    lines = printable(said).splitlines()
    return "\n".join(x if len(x) <= _WIDEST else f"{x[:_WIDEST]} ..." for x in lines)


def _end_alike() -> None:
    """Let the signals that ask a process to end do what Ctrl-C does: nothing is left half-way."""

    def end(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores one, and means it
                signal.signal(number, end)


def _defect(error: BaseException) -> str:
    """Return what to say of an error that nothing foresaw: what, where, and how to report it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if any(f"{os.sep}{h}{os.sep}" in f.filename for h in _HOUSES)]
    last = (ours or frames)[-1]
    said = " ".join(str(error).split())[:200]
    return (
        f"{type(error).__name__}: {said}\n"
        f"This is a mistake of sweeper {version('sweeper')} ({Path(last.filename).name}, line "
        f"{last.lineno}), or of input it should have refused.\n"
        "Please report it with the command and its files; SWEEPER_TRACEBACK=1 shows all of it"
    )


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        print(f"sweeper {version('sweeper')}")
        return 0
    first, rest = words[0], words[1:]
    if "=" in first or first.startswith(("+", "-", "~")):
        return _called("run.main", words)
    if first not in COMMANDS:
        raise _no_command(first, rest)
    if first == "plan" and any(word in ("-h", "--help") for word in rest):
        usage = USAGE[USAGE.index("python -m sweeper plan ") : USAGE.index("\nOf a sweep")]
        print(f"{usage}\nFor example:\n{examples(first)}")
        return 0
    return _called(COMMANDS[first], rest)


def _called(command: str, words: list[str]) -> int:
    module, _, function = command.rpartition(".")
    try:
        code: int = getattr(importlib.import_module(f"sweeper.commands.{module}"), function)(words)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UserError(f"'{str(error.filename)[:40]}...' is longer than a file's name") from error
    return code


def _no_command(first: str, rest: list[str]) -> UserError:
    """Return what to say of a word that is no command; a space's name means to run it."""
    known = spaces()
    meant = next((w for w in (first, *rest) if w in known), "NAME")
    hint = "" if first in known else suggestion(first, COMMANDS)
    return UserError(
        f"there is no command '{first}'{hint}\n"
        f"Commands: {', '.join(COMMANDS)}; a sweep is started by +space={meant}"
    )


if __name__ == "__main__":
    sys.exit(main())
