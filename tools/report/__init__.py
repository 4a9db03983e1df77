"""`kvemb report`: one HTML page about a series of checkpoints; page.py puts it together."""

from kvemb.tools.report.page import report

__all__ = ["report"]
