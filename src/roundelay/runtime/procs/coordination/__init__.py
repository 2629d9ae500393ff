"""Means, the work queue, and requests to other hosts."""
