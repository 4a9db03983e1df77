"""`python tests/stress`: random operations and crashes on a real table, compared with a model in plain arrays."""
