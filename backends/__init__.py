"""Backends: hot tables (cpu) and cold stores (rocks, memory). The core loads them by name through kvemb.registry."""
