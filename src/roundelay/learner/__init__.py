"""Gradients of a task, and the interface of learners."""
