"""What there is, kind by kind: names are files."""

from __future__ import annotations

import json
import re
from pathlib import Path

from simulators.core.errors import UnknownNameError
from simulators.core.folder import FOLDERS
from sweeper import engines, places, samplers
from sweeper.commands.flags import flags
from sweeper.commands.spaces import about


def main(words: list[str]) -> int:
    """Print the names of one kind, or of all."""
    parser = flags("list", "what there is")
    parser.add_argument("kind", nargs="?", help=", ".join(sorted(kinds())))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    everything = kinds()
    if chosen.kind is not None and chosen.kind not in everything:
        plural = FOLDERS[chosen.kind].plural if chosen.kind in FOLDERS else f"{chosen.kind}s"
        if plural not in everything:
            raise UnknownNameError("kind", chosen.kind, everything)
        chosen.kind = plural
    wanted = {chosen.kind: everything[chosen.kind]} if chosen.kind else everything
    if chosen.json:
        print(json.dumps(wanted, indent=1))
        return 0
    for kind, names in wanted.items():
        if kind == "spaces":
            print("spaces")
            for name in names:
                print(f"  {name:24} {_question(places.spaces()[name])}")
        else:
            print(kind)
            print(f"  {' '.join(names) or 'none'}")
    return 0


def _question(file: Path) -> str:
    """Return the first sentence of what a space is about; `show` prints all of it.

    A stop within a word, as in Llama-3.1, ends no sentence.
    """
    whole = about(file)
    match = re.match(r".*?[.?](?=\s|$)", whole)
    return match[0] if match else whole


def kinds() -> dict[str, list[str]]:
    """Return the names of everything, by kind in the plural."""
    found = {"spaces": list(places.spaces())}
    found |= {folder.plural: list(folder.names()) for folder in FOLDERS.values()}
    return {k: v for k, v in found.items() if v} | {
        "samplers": list(samplers.names()),
        "engines": list(engines.ENGINES),
    }
