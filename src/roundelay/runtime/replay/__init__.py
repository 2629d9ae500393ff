"""Runs a recorded trace again, bit for bit."""
