"""`kvemb bench tier`: tables larger than memory, by hot share, skew and size, compared with a loop on rocksdict."""
