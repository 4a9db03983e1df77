"""The texts of the page, as Markdown with fields in braces."""

from __future__ import annotations

SUMMARY = """\
Training a table of {rows:,} rows (dim {dim} float32 with Adagrad's slot, {table}), of which a share is hot, beside the
same loop written by hand on rocksdict with the same memory. A training step looks up a batch of keys, takes the
gradient and updates the rows. kvemb is {times} page cache, over all hot shares and skews measured."""

METHOD = """\
## How it was measured

{cores} cores ({cpu}), {memory} of memory, {system}, Python {python}, {versions}; {date}. Compare the two sides
rather than rates with those of other machines.

- **Steps.** Batches of {batch:,} keys, drawn by a Zipf law; the order of popularity does not change. kvemb prefetches
  the next batch, as a data loader can. The two sides take turns: {runs} windows each of {steps} steps, or
  {seconds:g} s if that is less. A window ends when its flushes and merges have ended. Charts and table show the median,
  of bytes the mean; CPU time is that of the whole process.
- **State.** Rows and scores are those of a long training: before a case, both sides read the most popular rows, as many
  as can be hot, and train one window. Every case begins with the same files.
- **Memory.** Both sides get 64 MiB and one and a half times the bytes of the hot rows ({cell} each): kvemb as its
  `memory_budget`, the loop by hand as block cache and memtables. Filters and indexes are not counted: by hand they are
  outside the cache, kvemb's are in the page cache.
- **By hand.** One sorted read and one sorted write a step, no log, Bloom filters
  (`tools/bench/train_by_hand.py`).
- **Page cache.** Warm: the files of both sides were read before, so nothing is read from the disk; that is the best
  case of both. Cold: a window begins with no page of the table's files in the page cache, which fills again during the
  window; the disk's latency dominates. A table much larger than memory is between the two.
- **Bytes** are the kernel's counts of the process (`/proc/self/io`), divided by all keys of the batches; rows that wait
  in kvemb's memory to be written count as written once. A record is {record} bytes. With a warm page cache the database
  serves kvemb the misses (1 - hit rate), and the loop by hand all rows."""

GROWTH = "The largest table is {largest} on disk, both sides together."
OUTSIDE = """\
 At {rows} rows the files do not fit the {memory} of memory, so only a cold page cache is measured there."""

SERIES = """\
{count} checkpoints with {steps} steps between two, in which {changed} of rows change. kvemb's have a manifest with
checksums and can be opened, pushed and compared; by hand it is RocksDB's own checkpoint. All that went to the disk from
one to the next, merges included, was {ours:.1f} times the changed rows for kvemb and {theirs:.1f} times by hand."""

RESTART = """\
Full speed: the first {rolling} steps whose mean is at most {slack:g} times a step before, in seconds since the opening
began. Closed and opened in one process, with kernels loaded and the page cache as it was."""

AGAIN = """\
## Measure it again

```
{command}
```

It continues after a stop, and deletes its tables. Every figure is in [{results}]({results})."""
