"""The commands of the command line: each parses its arguments, calls the library and prints."""

import tomllib
from pathlib import Path

COMMANDS = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
"""By name: the function that runs a command, what it does, its arguments, and examples."""
HELP = COMMANDS.pop("help")
"""The help of the program; `{commands}` stands where the commands are listed."""
SHARED = COMMANDS.pop("shared")
"""Arguments that several commands have."""
