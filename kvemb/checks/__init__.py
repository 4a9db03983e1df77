"""What is refused, and how messages show it: numbers as arguments and in JSON, their ranges, the fields of an object.

Pure functions and values. Imports nothing of kvemb.
"""
