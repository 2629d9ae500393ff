"""Elastic averaging (Zhang, Choromanska and LeCun 2015), as Li et al. 2017 write it, equations 8 and 9.

Each learner is tied to a centre w~ by a spring; alpha = lr * lambda is how far one exchange pulls the two together:

    asynchronous (9)   e = alpha (w - w~)      from one and the same pair
                       w <- w - e,  w~ <- w~ + e

    synchronous (8)    w_l <- w_l - lr grad f(w_l) - alpha (w_l - w~)    on all L learners, from the old centre
                       w~  <- w~ + alpha sum_l (w_l - w~)  =  w~ + L alpha (mean_l w_l - w~)

Both keep the sum of all rows and the centre. alpha = beta / L with beta <= 1, so that the centre cannot overshoot the
mean; beta = 0.9 in the authors' examples. The centre is the model.

Legend: C elements of a chunk, L learners.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Pull:
    """The asynchronous exchange of EASGD, equation 9: learner and centre pull each other."""

    alpha: float

    def __call__(self, mine: Tensor, centre: Tensor) -> None:
        """Move `mine` and `centre` (C,) towards each other, in place."""
        force = (mine - centre).mul_(self.alpha)
        mine.sub_(force)
        centre.add_(force)


def elastic_mean_(centre: Tensor, mean: Tensor, alpha: float, learners: int) -> None:
    """Apply the centre's half of equation 8: move `centre` (C,) in place, given the `mean` (C,) of all rows."""
    centre.lerp_(mean, learners * alpha)


def elastic_row(row: Tensor, centre: Tensor, alpha: float) -> Tensor:
    """Return the learner's half of equation 8, without its gradient: the `row` (C,) pulled towards the old `centre`
    (C,)."""
    return row.lerp(centre, alpha)


def set_centre_(_: Tensor, centre: Tensor, value: Tensor) -> None:
    """Write `value` into the centre, all (C,); a rule of exchanges that leaves the learner's row alone."""
    centre.copy_(value)
