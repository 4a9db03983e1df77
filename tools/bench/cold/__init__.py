"""Benchmarks of tables larger than memory: training, hit rates, memory."""
