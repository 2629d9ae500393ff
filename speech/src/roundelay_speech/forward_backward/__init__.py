"""Sums over all paths of a graph of states, and how often each column is emitted: the forward-backward algorithm."""
