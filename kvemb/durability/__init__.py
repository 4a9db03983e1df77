"""Durability: names on disk (layout), manifests, change tracking, durable points, checkpoints, recovery, and the delta
between two checkpoints.

FORMAT.md specifies the bytes. May import kvemb.rows and kvemb.tiers, but neither Variable nor Store.
"""
