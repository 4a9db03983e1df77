"""`kvemb report`: one HTML page about a series of checkpoints, assembled by page.py."""

from kvemb.tools.report.page import report

__all__ = ["report"]
