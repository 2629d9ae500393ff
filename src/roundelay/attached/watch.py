"""What changes a module's parameters beside the optimizer: noticed, and taken over into the row, or refused by name.

    taken over   values: clamped after the step (WGAN), loaded, initialised anew, renormalised in the forward, stepped
                 by an optimizer that was not attached. Such a change counts as part of the learner's step: it is added
                 to the row, element by element, and where nobody else has written the row meanwhile the row *is* the
                 new value afterwards
    refused      a parameter replaced by another, moved, cast, or unfrozen: it is no part of the row

What the module was made to show is kept, one more vector of the module's size, and compared before a step and after it:
version counters of tensors do not see what is written through `.data`, as most clamping is. A value that is changed and
changed back in between (an average of weights swapped in for an evaluation) is no change.

Legend: P trainable parameters, T tensors they are in, p one of these.
"""

import logging
from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor, nn

from roundelay.attached.parameters import Parameters
from roundelay.core.errors import UserError

log = logging.getLogger("roundelay")
NAMED = 3
"""So many parameters a message names."""

ATTACH_AGAIN = "Call session.close(), make the change, and attach again: the optimizer keeps its state."


class Watch:
    """Over the parameters of one module, as they are when it is attached."""

    def __init__(self, module: nn.Module, parameters: Parameters, rank: int, vector: Tensor) -> None:
        self._module, self._parameters, self._rank, self._said = module, parameters, rank, False
        self._kept = torch.empty_like(vector)  # (P,) what is shown, as it is in the row
        self._kept_views = parameters.views(self._kept)
        self._at: list[Tensor] = []  # (T) what the module looks at
        self._frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        self._places = [
            (f"{prefix}{'.' * bool(prefix)}{name}", part._parameters, name, p)
            for prefix, part in module.named_modules()
            for name, p in part._parameters.items()
            if p is not None
        ]

    def show(self, vector: Tensor, views: Sequence[Tensor]) -> None:
        """Make the module look at `vector` (P,), cut into `views`, and remember what it shows."""
        self._parameters.show(views)
        self._at = self._parameters.shown(views)
        self._kept.copy_(vector)

    def check(self) -> None:
        """Are the parameters those that were attached?

        Raises:
            UserError: one was replaced, moved, cast or unfrozen; names it.
        """
        for name, there, key, p in self._places:
            if there.get(key) is not p:
                raise UserError(
                    f"rank {self._rank}: parameter {name} was replaced by another after the module was attached "
                    "(load_state_dict(assign=True), a wrapper such as FullyShardedDataParallel or fully_shard, "
                    f"parametrizations, pruning). {ATTACH_AGAIN}"
                )
        for name, p in self._frozen:
            if p.requires_grad:
                raise UserError(
                    f"rank {self._rank}: parameter {name} requires a gradient now, and did not when the module was "
                    f"attached: the other learners would not hear of it. {ATTACH_AGAIN}"
                )
        for name, p, at in zip(self._parameters.names, self._parameters.all, self._at, strict=True):
            if p.data_ptr() != at.data_ptr() and (p.shape, p.dtype, p.device) != (at.shape, at.dtype, at.device):
                raise UserError(
                    f"rank {self._rank}: parameter {name} is {p.dtype} on {p.device} now, and was {at.dtype} on "
                    f"{at.device} when the module was attached (module.to, .half, .data = ...). {ATTACH_AGAIN}"
                )

    def check_all(self) -> None:
        """As `check`, and has the module no others?

        Raises:
            UserError: as `check`, and where a trainable parameter was added.
        """
        self.check()
        known = {id(p) for _, _, _, p in self._places}
        added = [name for name, p in self._module.named_parameters() if id(p) not in known and p.requires_grad]
        if added:
            raise UserError(
                f"rank {self._rank}: parameters {some(added)} were added after the module was attached. {ATTACH_AGAIN}"
            )

    def changes(self) -> "Changes | None":
        """What was changed since `show`, to be taken over; None: nothing."""
        found = self._differences()
        if not found:
            return None
        if not self._said:
            self._said = True
            log.warning(
                "rank %d: parameters %s were changed by hand, not by the optimizer attached; such changes are taken "
                "over into this learner's row.", self._rank, some([self._parameters.names[n] for n in found]),
            )  # fmt: skip
        return Changes(self._parameters, self._kept, found)

    def drop(self) -> None:
        """What was changed since `show` is not taken over; say so."""
        found = self._differences()
        if found:
            log.warning(
                "rank %d: parameters %s were changed inside session.consensus(), which holds the model to evaluate: "
                "the change is dropped. Make it outside.", self._rank, some([self._parameters.names[n] for n in found]),
            )  # fmt: skip

    def _differences(self) -> "Differences":
        values = [
            at if p.data_ptr() == at.data_ptr() else p.detach()
            for p, at in zip(self._parameters.all, self._at, strict=True)
        ]
        before = [kept.to(value.dtype) for kept, value in zip(self._kept_views, values, strict=True)]
        pairs = enumerate(zip(values, before, strict=True))
        return {number: (now.clone(), was.clone()) for number, (now, was) in pairs if not _same_bits(now, was)}


Differences = dict[int, tuple[Tensor, Tensor]]
"""By a parameter's number: as it is, and as it was shown."""


class Changes:
    """Parameters by number, as they are now and as they were shown."""

    def __init__(self, parameters: Parameters, kept: Tensor, by_number: Differences) -> None:
        self._parameters, self._by_number = parameters, by_number
        views = parameters.views(kept)
        self._kept = {number: views[number].clone() for number in by_number}

    def add_to(self, row: Tensor) -> None:
        """Take them over into `row` (P,)."""
        views = self._parameters.views(row)
        for number, (now, before) in self._by_number.items():
            view, kept = views[number], self._kept[number].to(row.device)
            there, was = now.to(row.device, torch.float32), before.to(row.device, torch.float32)
            added = torch.where(view == kept, there, view + (there - was))
            view.copy_(torch.where(there == was, view, added))

    @property
    def fingerprint(self) -> int:
        """Of what has become of them; not 0."""
        found = 1
        for number, (now, _) in self._by_number.items():
            found = crc32(now.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), found + number)
        return found or 1


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN is itself here."""
    kind = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.view(kind), b.view(kind)) if a.is_contiguous() else torch.equal(a, b)


def some(names: Sequence[str]) -> str:
    """The first few."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
