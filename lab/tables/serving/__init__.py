"""What tables of measured serving leave out, read elsewhere."""
