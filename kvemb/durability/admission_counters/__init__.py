"""The sightings of missing keys in a durable point or a checkpoint: counter files, and which of them a point has.

kvemb.operations.sightings counts them.
"""
