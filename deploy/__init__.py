"""What a design becomes on an engine: the command that starts it, or an orchestrator's manifest.

`deployments/` has one file per simulator. An engine is two files of
`engines/`: `NAME.toml` lists its documented options and `NAME.py` writes them for a design; an
orchestrator is one file of `orchestrators/`. Both folders may be extended by a user's own.
"""
