"""`roundelay storm`: a training on several hosts of one machine, undisturbed and under random faults, side by side."""
