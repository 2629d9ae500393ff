"""Rows and tables that processes share, their locks, and waits with an end."""
