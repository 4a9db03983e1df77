"""Steps in flight: a shard answers an optimizer's step as soon as it has accepted it, and takes it after that.

Every later call of the shard, of any client, waits for the steps in flight. So once a client has the answers of all
shards, lookups see the step, and checkpoints have it. Its client learns of its errors with its next calls.
"""
