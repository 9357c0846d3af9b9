"""The command `trust`: list or add folders whose code sweeper may run."""

from __future__ import annotations

from pathlib import Path

from simulators.core.errors import UserError
from simulators.core.folder import is_trusted, trust_file, trusted
from sweeper.commands.flags import flags
from sweeper.report.tables import print_words, write_text


def main(words: list[str]) -> int:
    """Trust folders, or print the trusted folders."""
    parser = flags("trust")
    parser.add_argument(
        "folders", nargs="*", metavar="FOLDER", help="folder to trust, including subfolders"
    )
    for word in (chosen := parser.parse_args(words)).folders:
        _trust(Path(word))
    if not chosen.folders:
        for folder in trusted():
            print_words(str(folder))
    return 0


def _trust(folder: Path) -> None:
    """Add a folder to the file of trusted folders."""
    home, file = folder.resolve(), trust_file().resolve()
    if not home.is_dir() or not str(home).isprintable():
        raise UserError(f"{folder} is not a folder, or its name has unprintable characters")
    if not is_trusted(home):
        before = file.read_text(encoding="utf-8") if file.is_file() else ""
        write_text(file, f"{before.rstrip()}\n{home}\n".lstrip())
        file.chmod(0o600)  # ignored if other users may write
    print_words(f"sweeper may now run code in {home}; the list of trusted folders is {file}")
