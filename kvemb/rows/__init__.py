"""Rows: their schema, their columns in memory (RowBlock), their bytes on disk (codec), hashes of keys, and the kernels
that draw initial values.

Pure functions and plain memory, without locks or file I/O. May import kvemb.errors and kvemb.checks, nothing else of
kvemb.
"""
