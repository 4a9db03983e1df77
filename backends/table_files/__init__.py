"""Cold rows read from RocksDB's own table files, by kernels; RocksDB goes on writing, merging and scanning.

RocksDB handles one key after the other, and each waits for its cache misses and its disk. A kernel does one thing for
all keys of a batch, then the next, and prefetches what the next one needs: filters, index, blocks. Files never change,
so nobody need be asked.

The idea is one sentence: a version, once read from RocksDB, is never wrong, only old. It is a list of files, with a
floor: every write below the floor is in these files. Rows of keys that were written since are read by RocksDB
(written), and all others by the kernels (version, reading). What a file must be is in FORMAT.md, "Table files", and
checked when it is opened (table_file); a family that has any other file is read by RocksDB.
"""
