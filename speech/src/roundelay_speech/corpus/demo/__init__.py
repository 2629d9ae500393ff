"""A corpus that is synthesised."""
