"""The log of writes, in which every change of rows is durable before its call returns: writing it (journal), and its
format and files (segment_files). kvemb.durability.recovery replays it.
"""
