"""The file formats of export and import, listed in known.py. A format sees named columns and nothing else of kvemb."""
