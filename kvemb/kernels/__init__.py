"""Kernels: how functions are compiled, and the cache on disk that lets the next process load them instead.

May import kvemb.threads and kvemb.errors, nothing else of kvemb.
"""
