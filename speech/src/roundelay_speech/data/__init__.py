"""Manifests, and what all of speech needs: arrays in files, problems by utterance, worker processes."""
