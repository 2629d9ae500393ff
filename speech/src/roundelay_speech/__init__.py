"""From recordings to words, without learners and processes."""
