"""Recognition with trained models: words, alignments, and transforms of speakers."""
