"""`kvemb bench cluster`: tables over shards (kvemb.cluster)."""
