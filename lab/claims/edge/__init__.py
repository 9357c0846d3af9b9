"""What `validate edge` states: devices of which a few latencies were measured, chips and boards."""
