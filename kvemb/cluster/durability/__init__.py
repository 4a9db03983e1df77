"""The checkpoints of a cluster: writing, their files at a URL, and restoring.

A cluster's checkpoint consists of one checkpoint of each shard (kvemb.durability), pushed to one place (kvemb.offline),
and one manifest.
"""
