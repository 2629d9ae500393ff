"""From scores to words: language models, graphs, search, lattices, confidences."""
