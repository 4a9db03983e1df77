"""Benchmarks of tables whose rows are all hot."""
