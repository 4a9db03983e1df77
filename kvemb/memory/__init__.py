"""The memory of a store: the budgets of the hot tables' cells, which go to the table that gains most; staging; and the
memtables, whose rows wait there until they are in a file.

May import kvemb.contracts, kvemb.rows and policies; nothing about when rows move between tiers.
"""
