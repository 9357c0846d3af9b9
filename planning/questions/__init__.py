"""One file a simulator that can be asked by flags: what it may be asked, and the space of that."""
