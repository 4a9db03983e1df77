"""Operations on checkpoints and whole tables: series of checkpoints, their transfer, verification, repair, and bulk
loading of rows into the cold store.

May import all of the core; only kvemb's top-level modules import it.
"""
