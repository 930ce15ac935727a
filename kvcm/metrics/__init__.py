"""Metric registry and its Prometheus face."""
