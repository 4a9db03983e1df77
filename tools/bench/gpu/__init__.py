"""`kvemb bench gpu`: hot rows in a GPU's memory beside hot rows in the host's."""
