"""Accuracy claims by group: `claims.toml` names rows, statistic and limit; modules predict rows."""
