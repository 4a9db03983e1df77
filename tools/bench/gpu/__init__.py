"""`kvemb bench gpu`: hot rows in a GPU's memory compared with hot rows in the host's."""
