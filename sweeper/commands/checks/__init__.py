"""Commands that check: results by computing them again, simulators by measurements and bands."""
