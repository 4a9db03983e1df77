"""RocksDB's options for a database and its column families, which determine what a cold row costs.

- The readers of table files hold filters and indexes whole, outside the block cache, as long as all of them fit a share
  of memory; a lookup then reads only one data block. Beyond that, new files get partitioned ones, and the block cache
  holds the partitions in use, so memory is bounded for any size of the table.
- Filters and indexes of mapped files are always whole; they are in the page cache, and take no memory of the process.
  There is no block cache then, because RocksDB would enter each block that it reads, to count it, and remove it again.
- Where files are larger than the page cache, RocksDB's merges go past it: they would evict what lookups need, and
  would read page by page, between the pages that lookups wait for.
- As long as all filters and indexes are whole, data blocks are not cached: a row that was read becomes hot, so its
  block is not read again soon, and it is in the page cache.
- Half the cost of a read is cache misses: on its block, for the checksum, and in the search of the index. So blocks are
  small (RocksDBCreator.block_bytes), and keys of the index share prefixes, so that more of them fit the CPU's caches.
- Universal compaction merges runs of similar size, so a row is rewritten a few times in its life, not whenever its
  neighbours change, and a series of checkpoints shares the large files. While everything is merged, a table temporarily
  takes twice its disk space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import rocksdict as rd

from kvemb.contracts import Family
from kvemb.options import RocksDBCreator

# Sorted runs that may wait to be merged. More of them are merged at once, so each row is rewritten less often; but a
# lookup asks the filter of every run.
RUNS = 8
# Files of level 0 at which RocksDB slows writers down, and stops them. High, so that a checkpoint
# with many small files does not make callers wait for their merging.
SLOW_FILES, STOP_FILES = 48, 96
# RocksDB's own memtables stay empty (kvemb/memory/memtables.py). Their least size, and that of their blocks.
MEMTABLE_BYTES, ARENA_BYTES = 64 << 10, 4 << 10
# The size at which RocksDB begins a new log of its own. A log begins with the options of every family that was made
# while there were fewer than ten; if these exceeded this size, each line would begin a new log. RocksDB keeps them in
# memory for that, about 20 KB each, until the database is closed, also those of families that were dropped. Without a
# size it would keep none, but the log would grow without limit; and rocksdict cannot set the level of what is logged.
LOG_BYTES = 64 << 20
# Keys of an index per restart point: all but the first are stored without the prefix shared with the one before.
# With one, kernels need not read any before it (table_files).
INDEX_RESTART_KEYS = 1
# A checkpoint copies RocksDB's manifest, which records every flush and merge. Once it is this large, a new one begins
# with a list of the files, 100 bytes each. If the list itself were larger, each record would begin a new one.
MANIFEST_BYTES = 4 << 20

# Of a database whose merges go past the page cache: how much of each file a merge reads at a time, and RocksDB's cache
# of indexes, of which a merge needs one for each file that it reads.
MERGE_READ_BYTES, INDEX_CACHE_BYTES = 256 << 10, 4 << 20

_COMPRESSION = {
    "none": rd.DBCompressionType.none,
    "lz4": rd.DBCompressionType.lz4,
    "zstd": rd.DBCompressionType.zstd,
    "snappy": rd.DBCompressionType.snappy,
}
# Options that make an open column family write new table files with partitions. The block cache stays.
PARTITIONED = {
    "block_based_table_factory": "{index_type=kTwoLevelIndexSearch;partition_filters=true;"
    "cache_index_and_filter_blocks=true}"
}


@dataclass(frozen=True)
class DatabaseOptions:
    """The options of one database. See rocks.RocksDatabase.

    mapped: whether files are mapped. open_files: the most files that it keeps open; None: all. opening_threads: how
    many threads open them with the database. past_cache: whether what RocksDB itself reads and writes, as when it
    merges, goes past the page cache, while lookups map the files.
    """

    cache: rd.Cache
    mapped: bool
    read_only: bool
    compacting: bool
    salvaging: bool
    open_files: int | None
    opening_threads: int
    past_cache: bool = False

    def of_family(self, creator: RocksDBCreator, *, partitioned: bool) -> rd.Options:
        """Return the options of a column family. partitioned: whether its filters and indexes are partitioned."""
        options = rd.Options(raw_mode=True)
        options.create_if_missing(not self.read_only)
        options.set_block_based_table_factory(self._table(creator, partitioned))
        if isinstance(creator.compression, str):
            options.set_compression_type(_COMPRESSION[creator.compression]())
        else:
            options.set_compression_per_level([_COMPRESSION[name]() for name in creator.compression])
        options.set_write_buffer_size(MEMTABLE_BYTES)
        options.set_arena_block_size(ARENA_BYTES)
        if creator.compaction == "universal":
            options.set_compaction_style(rd.DBCompactionStyle.universal())
        options.set_level_zero_file_num_compaction_trigger(RUNS)
        options.set_level_zero_slowdown_writes_trigger(SLOW_FILES)
        options.set_level_zero_stop_writes_trigger(STOP_FILES)
        options.set_disable_auto_compactions(not self.compacting)
        if self.salvaging:
            # Table files are opened on first use, so that a damaged one does not prevent opening the database.
            options.set_paranoid_checks(False)
        if self.open_files is not None:
            options.set_max_open_files(self.open_files)
        options.set_max_file_opening_threads(self.opening_threads)
        options.set_max_background_jobs(creator.background_jobs)
        options.set_allow_mmap_reads(creator.read_mode == "mmap" and not self.past_cache)
        options.set_use_direct_reads(creator.read_mode == "direct" or self.past_cache)
        if self.past_cache:
            options.set_use_direct_io_for_flush_and_compaction(True)
            options.set_compaction_readahead_size(MERGE_READ_BYTES)
        options.set_max_log_file_size(LOG_BYTES)
        options.set_keep_log_file_num(2)
        options.set_max_manifest_file_size(MANIFEST_BYTES)
        options.set_stats_dump_period_sec(0)
        return options

    def _table(self, creator: RocksDBCreator, partitioned: bool) -> rd.BlockBasedOptions:
        table = rd.BlockBasedOptions()
        if self.past_cache:
            table.set_block_cache(self.cache)
        elif self.mapped and not partitioned:
            table.disable_cache()
        else:
            table.set_block_cache(self.cache)
            table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_block_size(creator.block_bytes)
        table.set_format_version(5)
        table.set_checksum_type(rd.ChecksumType.xxh3())
        if creator.bloom_bits:
            table.set_bloom_filter(creator.bloom_bits, False)
        table.set_metadata_block_size(4096)
        table.set_index_block_restart_interval(INDEX_RESTART_KEYS)
        table.set_pin_top_level_index_and_filter(True)
        table.set_cache_index_and_filter_blocks(partitioned or self.past_cache)
        if partitioned:
            table.set_index_type(rd.BlockBasedIndexType.two_level_index_search())
            table.set_partition_filters(True)
        return table


def holding_whole(families: Mapping[str, Family], max_bytes: int) -> set[str]:
    """Return the families whose filters and indexes are held whole: the smallest ones, of max_bytes in total."""
    needed = sorted((_metadata_bytes(family), name) for name, family in families.items())
    return {
        name
        for total, name in zip(accumulate(size for size, _ in needed), (name for _, name in needed), strict=True)
        if total <= max_bytes
    }


def database_creator(families: Mapping[str, Family]) -> RocksDBCreator:
    """Return a creator with the settings that apply to the whole database: read_mode and background_jobs."""
    creators = [family.creator for family in families.values()] or [RocksDBCreator()]
    modes = {creator.read_mode for creator in creators}
    jobs = max(creator.background_jobs for creator in creators)
    return RocksDBCreator(read_mode=modes.pop() if len(modes) == 1 else "pread", background_jobs=jobs)


def _metadata_bytes(family: Family) -> int:
    """Return an estimate of the bytes of its filters and indexes: the filter's bits per row, and 24 bytes per block."""
    blocks = family.rows * family.record_bytes // family.creator.block_bytes
    return int(family.rows * family.creator.bloom_bits // 8 + 24 * blocks)
