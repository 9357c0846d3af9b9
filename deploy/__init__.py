"""Export a design as the command of an engine or the manifest of an orchestrator.

`deployments/` has one module per simulator. An engine has two files: `NAME.toml` in
`simulators/catalog/engines/` lists its documented options and `engines/NAME.jinja` writes them for
a design. An orchestrator is one template, `orchestrators/NAME.yaml`. Users may add both.
"""
