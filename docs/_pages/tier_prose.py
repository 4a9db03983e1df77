"""The texts of the page, as Markdown with fields in braces."""

from __future__ import annotations

SUMMARY = """\
How fast does a table train if only a share of its rows is hot? This page compares kvemb with the same loop written by
hand on rocksdict, with the same memory. The table has {rows:,} rows (dim {dim} float32 with Adagrad's slot, {table}). A
training step looks up a batch of keys, takes the gradient and updates the rows.

kvemb is {times} page cache, over all hot shares and skews measured."""

METHOD = """\
## How it was measured

{cores} cores ({cpu}), {memory} of memory, {system}, Python {python}, {versions}; {date}. Compare the two sides,
not their rates with those of other machines.

- **Steps.** Batches of {batch:,} keys are drawn by a Zipf law. The order of popularity does not change. kvemb
  prefetches the next batch, as a data loader can. The two sides take turns: {runs} windows of {steps} steps each, or of
  {seconds:g} s if that is less. A window ends when its flushes and merges have ended. Charts and table show the median;
  for bytes they show the mean. CPU time is that of the whole process.
- **State.** Every case begins with the same files, and with the rows and scores of a long training: both sides first
  read as many of the most popular rows as can be hot, and train one window.
- **Memory.** Both sides get 64 MiB and one and a half times the bytes of the hot rows ({cell} each). kvemb gets it as
  its `memory_budget`, the loop by hand as block cache and memtables. Filters and indexes are not counted: by hand they
  are outside the cache, and kvemb's are in the page cache.
- **By hand.** One sorted read and one sorted write a step, no log, Bloom filters
  (`tools/bench/train_by_hand.py`).
- **Page cache.** Warm: the files of both sides were read before, so nothing is read from the disk. This is the best
  case of both. Cold: a window begins with none of the table's files in the page cache, which fills again during the
  window. The disk's latency dominates. A table much larger than memory is between the two.
- **Bytes** are the kernel's counts for the process (`/proc/self/io`), divided by all keys of the batches. Rows that
  still wait in kvemb's memory count as written once. A record has {record} bytes. With a warm page cache the database
  serves only the misses of kvemb (1 - hit rate), and all rows of the loop by hand."""

GROWTH = "The largest table is {largest} on disk, both sides together."
OUTSIDE = """\
 At {rows} rows the files do not fit into {memory} of memory, so only a cold page cache is measured there."""

SERIES = """\
The series has {count} checkpoints. Between two of them {steps} steps change {changed} of rows. kvemb's checkpoints have
a manifest with checksums, and can be opened, pushed and compared. By hand it is RocksDB's own checkpoint. From one
checkpoint to the next, merges included, kvemb writes {ours:.1f} times the changed rows to the disk, and the loop by
hand {theirs:.1f} times."""

RESTART = """\
"Full speed after" counts the seconds from opening until {rolling} steps average at most {slack:g} times a step before
the restart. The store is closed and opened in one process, with its kernels loaded and the page cache as it was."""

AGAIN = """\
## Measure it again

```
{command}
python docs/_pages/tier_page.py FOLDER/{results} docs/inside/tier.md
```

The command continues where it was stopped, and deletes its tables at the end. Every figure is in
[{results}]({results})."""
