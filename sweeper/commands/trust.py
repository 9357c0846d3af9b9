"""Whose code may run: folders that the user trusts, kept in a file of the user's own."""

from __future__ import annotations

from pathlib import Path

from simulators.core.errors import UserError
from simulators.core.modules import is_trusted, trust_file, trusted
from sweeper.commands.flags import flags
from sweeper.report.tables import print_words, write_text


def main(words: list[str]) -> int:
    """Trust folders, or print those that are trusted."""
    parser = flags("trust")
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="and all that is in it")
    for word in (chosen := parser.parse_args(words)).folders:
        _trust(Path(word))
    if not chosen.folders:
        for folder in trusted():
            print_words(str(folder))
    return 0


def _trust(folder: Path) -> None:
    """Write a folder into the file, a line of its own."""
    home, file = folder.resolve(), trust_file().resolve()
    if not home.is_dir() or not str(home).isprintable():
        raise UserError(f"{folder} is no folder that can be trusted")
    if not is_trusted(home):
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
        write_text(file, f"{before.rstrip()}\n{home}\n".lstrip())
        file.chmod(0o600)  # it counts only where nobody else may write
    print_words(f"code in {home} runs when it is asked for; {file} says so")
