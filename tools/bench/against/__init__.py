"""`kvemb bench train --against`: this version of kvemb beside another one, in turns."""
