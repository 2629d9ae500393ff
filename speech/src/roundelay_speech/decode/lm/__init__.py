"""N-gram language models."""
