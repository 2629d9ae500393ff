"""Transcription: from recordings of any kind and length to words with times, by a packed model."""
