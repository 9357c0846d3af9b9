"""The logistics, on toy simulators whose answers are known beforehand."""
