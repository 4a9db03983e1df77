"""The counters of Admissions in a durable point or a checkpoint: counter files, and which of them a point has.

kvemb.operations.admission_counters counts.
"""
