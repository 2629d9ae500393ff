"""Hosts made of network namespaces on one machine, and the cables between them, for trainings under faults."""
