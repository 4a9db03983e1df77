"""Marks: durable points that a store keeps, so that it can go back to them."""
