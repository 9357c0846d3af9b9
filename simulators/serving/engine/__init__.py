"""The event loop: `service.py` runs requests through replicas, `replica.py` holds the state."""
