"""`kvemb bench train --against`: compares this version of kvemb with another one, in turns."""
