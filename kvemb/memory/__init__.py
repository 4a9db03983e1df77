"""The memory budgets of a store: what hot tables hold and others borrow, and how it moves to the table that gains most.

May import kvemb.contracts, kvemb.rows and policies; nothing about how rows move between tiers.
"""
