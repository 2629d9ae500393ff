"""`roundelay inspect`: problems of a corpus and their remedies, before training."""
