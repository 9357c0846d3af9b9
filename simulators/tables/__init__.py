"""Tables of designs as simulators, and what foretells designs beside their rows."""
