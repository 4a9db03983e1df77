"""`kvemb bench tier`: tables larger than memory, by hot share, skew and size, beside the same loop on rocksdict."""
