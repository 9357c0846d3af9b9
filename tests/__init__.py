"""The second reading of the idea. The folders follow the tree of the code."""
