"""Performs effects: with processes, in a simulator, in a replay, on several hosts."""
