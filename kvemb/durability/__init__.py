"""What survives: names on disk (layout), manifests, the log of writes (journal), which keys changed, durable points,
checkpoints, recovery, and the delta between two checkpoints.

FORMAT.md specifies the bytes. May import kvemb.rows and kvemb.tiers; knows no Variable and no Store.
"""
