"""A store from the inside: the engine that runs one, its open tables, and how a variable is specified, assembled and
dropped.

Users hold a Store and Variables, which stand for an Engine and Tables (kvemb.handle). May import kvemb.tiers and
kvemb.durability; knows no Store and no Variable.
"""
