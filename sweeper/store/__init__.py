"""Results on disk: parts that workers write, and which points they answer.

`keys` says what a point is, so that it is recognised whatever space it is met in; `parquet` writes
and reads one file, `part_names` what its name says, `seals` whether it is whole. `store` answers
what is finished and what is missing, and `reuse` copies what sweeps of other spaces have answered.
"""
