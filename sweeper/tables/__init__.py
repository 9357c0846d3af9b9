"""Tables of designs as simulators: rows that are there, and what lies between them."""
