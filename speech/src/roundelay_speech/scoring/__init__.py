"""Word error rates: alignments of words, counts, intervals."""
