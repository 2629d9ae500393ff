"""Coordinator and agents: which hosts take part, and which minibatches each has."""
