"""Work on other threads, and deferred signal handlers. Imports nothing else of kvemb."""
