"""Routers, one file each: a kernel `route` of the signature `ROUTE` picks a replica."""
