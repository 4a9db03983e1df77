"""`kvemb stress`: random operations and crashes on a real table, compared with a plain model."""
