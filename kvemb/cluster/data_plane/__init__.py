"""The data plane of a cluster on Ray: how rows travel between a client and a shard. Ray carries all other calls.

Between processes of one node, a message is written to shared memory and announced over a Unix socket (unix_server,
unix_client); between nodes it goes through Arrow Flight (flight_server, flight_client). A shard says which of the two a
client must use (served), and a client keeps its open channels to each shard (links). A message is a pickle with its
arrays beside it (encoding).
"""
