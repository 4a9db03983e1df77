"""Where the rows of one variable are, and what moves them: hot tables, the spill buffer, cold reads, and the snapshot
of dirty rows that a checkpoint writes.

TieredStorage is the only actor that moves rows; TableOperations is what each call does to them. One lock a variable
guards all of it. May import kvemb.rows, kvemb.contracts, policies and optimizers; nothing of files, manifests or
stores.
"""
