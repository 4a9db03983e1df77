"""`kvemb demo`: complete training jobs, their data, models and metrics."""
