"""Reads numbered cases one after the other under an alarm, and tells which did not end well.

As a command it bounds its memory first: `python -m tests.fuzz.worker FIRST COUNT FOLDER`.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from simulators.core.errors import Infeasible, UserError
from tests.fuzz.readers import READERS, case

SECONDS, LINES, MEMORY = 10, 12, 1_000_000_000


class _TooLong(BaseException):
    """A case is still at work."""


def wrong(number: int) -> str:
    """Return what is wrong with how a case ended; nothing where it ended well."""
    name, content = case(number)
    file = Path(READERS[name].name)
    file.write_bytes(content)
    started = time.monotonic()
    try:
        with _alarm(), contextlib.redirect_stdout(io.StringIO()):
            READERS[name].read(file)
    except (UserError, Infeasible) as error:
        said = str(error)
        if not said.strip() or len(said.splitlines()) >= LINES:
            return f"{name} {number}: says {len(said.splitlines())} lines"
    except _TooLong:
        return f"{name} {number}: still at work after {SECONDS} s"
    except BaseException as error:  # noqa: BLE001 - that is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return f"{name} {number}: {type(error).__name__} at {place}: {str(error)[:100]}"
    return f"{name} {number}: took too long" if time.monotonic() - started > SECONDS else ""


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    """Print a line for each case that did not end well, and the number of each before it begins."""
    first, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.chdir(folder)
    warnings.simplefilter("ignore")
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for number in range(first, first + count):
        Path("now").write_text(str(number))
        if said := wrong(number):
            print(said, flush=True)


if __name__ == "__main__":
    main()
