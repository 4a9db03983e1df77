"""Input validation: numbers in arguments and in JSON, their ranges, the fields of a JSON object, values in messages.

Pure functions and values. Imports nothing of kvemb.
"""
