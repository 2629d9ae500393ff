"""The simulator: learners on a virtual clock."""
