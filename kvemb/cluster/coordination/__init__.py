"""The coordinator of a cluster: the one part that all clients share.

It makes the shards, and replaces them after a loss. It makes a cut through all calls for operations that must see all
shards at one moment: checkpoints, restrictions, scans. Clients send their other calls directly to the shards.
"""
