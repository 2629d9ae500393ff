"""Words against words: alignment and counts."""
