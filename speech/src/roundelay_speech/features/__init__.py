"""Features: computed once, stored, read by column."""
