"""Benchmarks of what is written: checkpoints, exports, and the cold store's own writes."""
