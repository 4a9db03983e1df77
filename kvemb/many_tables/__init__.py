"""Calls on many variables at once: the checks of their arguments, and the calls (Store.lookup and the like)."""
