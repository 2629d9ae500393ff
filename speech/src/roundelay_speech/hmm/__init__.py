"""Alignments, from nothing or with a network: hidden Markov models, mixtures, trees."""
