"""One optimizer step of several clients, the ranks of a data parallel training (kvemb.torch.Optimizer with a group).

Each rank puts its part on the shards, where nothing changes by that. Once the ranks know that all parts are there, one
of them makes one call, in which each shard joins its parts and takes the step. This call is like any other: it has a
Stamp, so it is executed once, and a cut has it on all shards or on none. A rank that ends before it leaves no trace.
"""
