"""Schedulers, one file each: a kernel `schedule` of the signature `SCHEDULE` forms a batch."""
