"""Figures of stores for monitoring systems, Prometheus and TensorBoard, and for progress bars.

Import it with `import kvemb.monitoring`. Prometheus gets the figures as text, as a collector of prometheus_client, or
in a file for node_exporter; TensorBoard gets what changed from step to step. Only the collector needs a package:
pip install 'kvemb[monitoring]'.

Thread-safe. Reading the figures takes each variable's lock, so it waits for the call in progress.

Example:
    >>> import kvemb.monitoring
    >>> rows = users.lookup([1, 2, 7])
    >>> text = kvemb.monitoring.prometheus_text(main=store)
    >>> [line for line in text.splitlines() if line.startswith("kvemb_hits_total")]
    ['kvemb_hits_total{store="main",variable="users"} 2']
"""

from kvemb.monitoring.progress_line import ProgressLine
from kvemb.monitoring.prometheus import PrometheusCollector, prometheus_text, write_textfile
from kvemb.monitoring.scalars import Scalars

__all__ = ["ProgressLine", "PrometheusCollector", "Scalars", "prometheus_text", "write_textfile"]
