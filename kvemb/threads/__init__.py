"""Work on other threads, and deferred Ctrl-C. Imports nothing else of kvemb."""
