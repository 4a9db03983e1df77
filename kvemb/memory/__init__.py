"""The memory budgets of a store: cells of hot tables, which go to the table that gains most, and staging.

May import kvemb.contracts, kvemb.rows and policies; nothing about how rows move between tiers.
"""
