"""What a design becomes on an engine: the command that starts it, or an orchestrator's manifest.

`serving.py` is the door, for designs of the simulator of that name. An engine is two files of
`engines/`: `NAME.toml` says what it documents and `NAME.py` how a design is told to it; an
orchestrator is one file of `orchestrators/`. Both folders may be extended by a user's own.
"""
