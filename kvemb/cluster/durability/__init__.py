"""The checkpoints of a cluster: how they are written, what is at a URL, and what is made of them.

A checkpoint of each shard (kvemb.durability), pushed to one place (kvemb.offline), under one manifest.
"""
