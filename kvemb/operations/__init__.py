"""What each call does to the rows of one variable: reads, updates, optimizer steps, restriction.

TableOperations has all of these calls: TableReads, then TableUpdates, then those whose arrays are in a GPU's memory.
They locate rows through kvemb.tiers, which alone moves them. May import kvemb.tiers; nothing about files, manifests or
stores.
"""
