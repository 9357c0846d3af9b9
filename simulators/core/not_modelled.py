"""What people ask for that is known and not modelled, each with a sentence that says so."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

SENTENCES = Path(__file__).with_suffix(".toml")


def not_modelled(word: str) -> str:
    """Return what to say of a word that is known and not modelled; nothing of any other.

    >>> not_modelled("Beam-Search")
    'beam search is not modelled; every request is one sequence'
    >>> not_modelled("tpp")
    ''
    """
    spelt = re.sub(r"[\s.-]+", "_", word.casefold())
    sentences = tomllib.loads(SENTENCES.read_text(encoding="utf-8"))
    return next((said for form, said in sentences.items() if re.search(form, spelt)), "")
