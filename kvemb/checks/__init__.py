"""Input validation: numbers in arguments and in JSON, their ranges, fields of JSON objects, values in messages.

Pure functions and values. Imports nothing of kvemb.
"""
