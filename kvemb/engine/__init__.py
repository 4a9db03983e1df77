"""The inside of a store: its engine, its open tables, and the specification, assembly and dropping of variables.

Users hold a Store and Variables, which stand for an Engine and Tables (kvemb.handle). May import kvemb.operations
and kvemb.durability; knows no Store and no Variable.
"""
