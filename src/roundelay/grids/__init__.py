"""Grids of trainings, each in a run directory of its own, and their results side by side, of any source"""
