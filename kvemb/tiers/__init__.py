"""The tiers of one variable and the movement of rows between them: hot tables, cold reads, and the snapshot of dirty
rows that a checkpoint writes.

Only TieredStorage moves rows; kvemb.operations defines what each call does to them. One lock per variable guards
everything. May import kvemb.rows, kvemb.contracts, policies and optimizers; nothing about files, manifests or stores.
"""
