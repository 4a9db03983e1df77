"""What a row is: its schema, its columns in memory (RowBlock), its bytes on disk (codec), the hash of its key, and the
kernels that draw its first values.

Pure functions and plain memory: nothing here locks, and nothing reads or writes a file. May import kvemb.errors and
kvemb.checks, nothing else of kvemb.
"""
