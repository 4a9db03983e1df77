"""`kvemb bench`: measurements beside a peer in the same run, one file each; command.py has the command line."""
