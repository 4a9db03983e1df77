"""What the clients of a cluster have in common, in one place: its coordinator.

It makes the shards, and makes them again after a loss; it cuts through all calls for what must see all shards at one
moment: checkpoints, restrictions, scans. Clients' own calls go to the shards alone.
"""
