"""Work on other threads, and Ctrl-C while it goes on. Imports nothing of kvemb."""
