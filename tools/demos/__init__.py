"""`kvemb demo`: three complete training jobs, their data, models and metrics."""
