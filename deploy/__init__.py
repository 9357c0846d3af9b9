"""Export a design as the command of an engine or the manifest of an orchestrator.

`deployments/` has one file per simulator. An engine is two files of
`engines/`: `NAME.toml` lists its documented options and `NAME.py` writes them for a design; an
orchestrator is one file of `orchestrators/`. Both folders may be extended by a user's own.
"""
