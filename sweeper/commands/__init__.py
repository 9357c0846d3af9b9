"""The commands of the command line: each reads its flags, asks the other rooms and prints.

`run` sweeps and plans what `overrides` compose; `ask` makes a sweep of a question by flags. Of a
sweep that has been run, `pareto`, `query`, `show`, `explain`, `compare`, `export` and `report`
answer questions. `verify` and `validate` check results and simulators, `scenarios` answers what
practitioners ask; `calibrate` and `transfer` are for hardware of one's own; `watch` shows a sweep
that runs elsewhere, `prune` and `merge` tidy results up; `trust` says whose code may run; `assist`
serves editors and shells.
"""

COMMANDS = {
    "ask": "ask.main",
    "list": "show.list_names",
    "show": "show.main",
    "plan": "run.plan",
    "pareto": "pareto.main",
    "query": "query.main",
    "report": "report.main",
    "plot": "report.plot",
    "explain": "explain.main",
    "compare": "compare.main",
    "export": "export.main",
    "verify": "checks.verify.main",
    "schema": "assist.schema.main",
    "validate": "checks.validate.main",
    "scenarios": "checks.scenarios.main",
    "doctor": "checks.verify.doctor",
    "watch": "upkeep.watch",
    "prune": "upkeep.prune",
    "merge": "upkeep.merge",
    "calibrate": "new_hardware.calibrate",
    "transfer": "new_hardware.transfer",
    "trust": "trust.main",
    "completion": "assist.completion.main",
}
"""The module and the function here behind each command."""
