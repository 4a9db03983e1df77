"""Input validation: numbers in arguments and in JSON, their ranges, fields of JSON objects, values in messages;
and advice where no more files may be opened.

Imports nothing of kvemb but its errors.
"""
