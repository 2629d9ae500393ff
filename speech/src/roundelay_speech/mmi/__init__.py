"""Graphs of lattice-free MMI: the sounds of a transcript, and all sounds that a language of phones allows."""
