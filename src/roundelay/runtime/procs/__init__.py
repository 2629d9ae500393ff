"""One host: a process for each learner, rows in shared memory."""
