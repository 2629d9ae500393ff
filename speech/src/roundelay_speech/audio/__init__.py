"""Recordings: reading, resampling, speed."""
