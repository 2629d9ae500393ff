"""Means of all learners between hosts: one abstract class, and a file for each way."""
