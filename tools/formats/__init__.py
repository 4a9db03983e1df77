"""Formats that tables are exported to and imported from. known.py lists them; a format sees named columns and nothing
else of kvemb.
"""
