"""`kvemb bench`: measures kvemb and a peer in the same run. command.py has the commands; each benchmark has a file."""
