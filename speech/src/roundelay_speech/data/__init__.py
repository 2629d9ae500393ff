"""Manifests, and tools for all of speech: arrays in files, problems by utterance, worker processes."""
