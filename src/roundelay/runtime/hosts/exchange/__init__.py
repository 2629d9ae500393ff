"""One-sided exchanges with rows of other hosts."""
