"""Language models of words: files, vocabularies, scores."""
