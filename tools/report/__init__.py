"""`kvemb report`: one HTML page about a series of checkpoints, assembled by page.py; distributions of numbers."""
