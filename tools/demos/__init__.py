"""`kvemb demo`: two complete training jobs, their data, models and metrics."""
