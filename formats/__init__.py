"""Files that other tools write, read as our types: one file a format.

A simulator that is given such a file loads its reader by the format's name, and no other: physics
knows models, graphs, programs and mappings, and none of the words in which others write them.
"""
