"""Collectives: what it takes ranks to exchange and reduce their buffers over a network."""
