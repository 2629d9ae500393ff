"""Remedies for outer gradients that come late: less weight the older they are (CGAD: Shah and Sun 2026, arXiv
2605.09126), and a turn towards the outer momentum where they point elsewhere (HeLoCo: Al Asif et al. 2026, arXiv
2606.00271).

    weight   sigma(tau) = gamma(tau) e^(-decay tau)
             gamma(tau) = (1 + cos(pi min(tau, cutoff) / cutoff)) / 2        1 without a cutoff

The product is CGAD's abstract's, the form of gamma, which "smoothly zeroes contributions past a chosen cutoff", our
reading: the paper's own text was not read. There Adam's moments take the weighed gradient; here the outer optimizer
that there is. tau is counted in whole outer rounds, of N reports each.

    turn     of every block of 1,024 elements, with d the outer gradient, m the outer momentum, c the cosine of the two
             and conf = |d| / (|d| + |m|):

             c >= keep      d
             0 <= c < keep  |d| u / |u|,   u = (1 - l) d / |d| + l m / |m|,   l = min(1, (1 - c) conf)
             c < 0          d - b c |d| m / |m|,                              b = min(1, -c conf)

    so that a gradient against the momentum loses the part against it, and one aside is turned, at its length.

The equation of the turn is HeLoCo's as others quote it, with all of its strengths (k_s, k_d, beta_max, kappa) at 1,
which is ours: the paper's own text was not read. There m is a mean of outer gradients, (1 - mu) times ours, and blocks
are tensors. Where m is zero, at first, nothing is turned.

Legend: C elements of a chunk.
"""

import math

import torch
from torch import Tensor
from torch.linalg import vector_norm

from roundelay.algorithms.codecs.blocks import blocks_of


def weight_of_age(rounds: int, decay: float, cutoff: float) -> float:
    """Return the weight sigma of an outer gradient that is `rounds` outer rounds old; 0 from an age of `cutoff` on,
    unless that is 0."""
    gate = (1 + math.cos(math.pi * min(rounds, cutoff) / cutoff)) / 2 if cutoff else 1.0
    return gate * math.exp(-decay * rounds)


def turn_(change: Tensor, momentum: Tensor, keep: float, scale: float) -> None:
    """Turn the outer gradient `change` (C,), in place, towards `scale` times `momentum` (C,), which is only read."""
    for d, m in zip(blocks_of(change), blocks_of(momentum), strict=True):
        length, other = (vector_norm(vector, dim=1, keepdim=True) for vector in (d, m))
        unit, ahead = d / length, m / other
        cosine = (unit * ahead).sum(1, keepdim=True)
        sure = length / (length + scale * other)
        aside = (1 - cosine).mul(sure).clamp_(max=1)
        turned = torch.lerp(unit, ahead, aside)
        turned.mul_(length / vector_norm(turned, dim=1, keepdim=True))
        shrunk = d - cosine.neg().mul(sure).clamp_(max=1) * cosine * length * ahead
        found = torch.where(cosine < 0, shrunk, turned)
        d.copy_(torch.where((cosine >= keep) | (length == 0) | (other == 0), d, found))
