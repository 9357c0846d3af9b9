"""The commands of the command line: each parses its options, calls the library and prints."""

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
    "doctor": "checks.verify.doctor",
    "watch": "upkeep.watch",
    "prune": "upkeep.prune",
    "merge": "upkeep.merge",
    "measure": "hardware.measure",
    "calibrate": "hardware.calibrate",
    "trust": "trust.main",
    "completion": "assist.completion.main",
}
"""The module and the function here behind each command."""
