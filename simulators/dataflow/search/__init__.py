"""The mapper: what it minimises, what it must obey, and its walk among mappings."""
