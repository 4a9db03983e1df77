"""Work on checkpoints and whole tables without the training job: series of checkpoints, their transfer, verification,
repair, and loading rows past the hot tier.

Stands on everything else of the core; nothing below imports it.
"""
