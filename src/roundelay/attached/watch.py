"""Changes of a module's parameters beside the optimizer: taken over into the row, or refused by name.

    taken over   values: clamped after the step (WGAN), loaded, initialised anew, renormalised in the forward, stepped
                 by an optimizer that was not attached. Such a change counts as part of the learner's step: it is added
                 to the row, element by element, and where no other learner has written the row meanwhile the row *is*
                 the new value afterwards
    refused      a parameter replaced by another, moved, cast, or unfrozen: it is no part of the row

Version counters of tensors do not see writes through `.data`, as most clamping does. So for the first `CLOSE`
times that the module is made to show something, and from the first change on, all of it is kept, and compared before a
step and after it: that finds every change and its size. It costs some passes over the parameters a step, so a loop
that has changed nothing so far is watched by less: the version counters, and `SAMPLED` values of every tensor. A change
found in that way is taken over as it is, even if the row has changed meanwhile; the loop is watched closely from then
on. One learner alone on a GPU need not be watched by less: its row is made as the module is before anything else is
done with it, and nothing on the GPU has to be waited for.

A value that is changed and changed back in between (an average of weights swapped in for an evaluation) is no change to
a close watch. One that is moved for a further gradient of the same step, and moved back (sharpness-aware minimisation
written by hand: `p.add_(e)`, a gradient, `p.sub_(e)`), comes back to within rounding: `look` sees it away while the
gradient is taken. It is put back exactly, for learners that hold one model would come apart; one learner alone goes
where the plain loop goes.

Legend: P trainable parameters, T tensors they are in, p one of these.
"""

import logging
from collections.abc import Sequence
from operator import attrgetter, is_
from zlib import crc32

import torch
from torch import Tensor, nn

from roundelay.attached.forward import fingerprint
from roundelay.attached.parameters import Parameters
from roundelay.core.errors import UserError
from roundelay.runtime.attached.groups import local

log = logging.getLogger("roundelay")
NAMED = 3
"""Number of parameters that a message names."""
CLOSE = 40
"""Times that the module is made to show something, two a step at most, before it is watched by less."""
SAMPLED = 16
"""Number of values of each tensor, evenly spaced, that are looked at in a watch by less."""

_version_of = attrgetter("_version")

ATTACH_AGAIN = "Call session.close(), make the change, and attach again: the optimizer keeps its state."


class Watch:
    """Watch over changes of one module's parameters, from the moment it is attached.

    Args:
        vector: the vector (P,) that the module looks at first.
        alone: there is one learner.
        followed: there is one, and its row is made equal to `vector` wherever `trusts`.
        closely: keep all values at first; False: not before a change is found.
    """

    def __init__(
        self,
        module: nn.Module,
        parameters: Parameters,
        rank: int,
        vector: Tensor,
        alone: bool = False,
        followed: bool = False,
        closely: bool = True,
    ) -> None:
        self._module, self._parameters, self._rank, self._said, self._alone = module, parameters, rank, False, alone
        self._followed = vector if followed else None
        self._kept = torch.empty(0)  # (P,) the values shown, as they are in the row; of a close watch
        self._kept_views: list[Tensor] = []
        self._at: list[Tensor] = []  # (T) the tensors the module looks at
        self._addresses: list[int] = []  # (T) of these
        self._vector, self._close = vector, True  # the vector it looks at, where it is not rounded
        self._shown = 0 if closely else CLOSE
        self._away: list[Tensor] | None = None  # (T) values at which a further gradient of this step is taken
        self._returns = False  # have values been away, and so all of them are kept?
        self._there = False  # did it, at the last look?
        self._always = any(rounded is not None for rounded in parameters.rounded)
        self._sample, self._owner = _spread([p.numel() for p in parameters.tensors], vector.device)
        self._sampled = self._sampled_bits = torch.empty(0)
        self._versions: list[int] = []
        self._frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        self._frozen_as: list[int | None] = [_glance(p) for _, p in self._frozen]  # as attached; none once it is said
        self._places = [
            (f"{prefix}{'.' * bool(prefix)}{name}", part._parameters, name, p)
            for prefix, part in module.named_modules()
            for name, p in part._parameters.items()
            if p is not None
        ]
        self._tables = [table for _, table, _, _ in self._places]  # looked up once, for they are needed twice a step
        self._keys = [key for _, _, key, _ in self._places]
        self._known = [p for _, _, _, p in self._places]

    def show(self, vector: Tensor, views: Sequence[Tensor]) -> None:
        """Make the module look at `vector` (P,), cut into `views`, and remember its values."""
        self._looks_there()
        if not self.showed(vector):  # to assign `.data` anew is most of the work
            self._parameters.show(views)
            self._at, self._vector = self._parameters.shown(views), vector
            self._addresses, self._there = [at.data_ptr() for at in self._at], True
        self._shown, self._away = self._shown + 1, None
        self._close = self._always or self._said or self._returns or self._shown <= CLOSE
        if self._close:
            self._keep(vector)
            return
        self._kept, self._kept_views = torch.empty(0), []
        if vector is not self._followed:
            self._sampled = vector.index_select(0, self._sample)
            self._sampled_bits = self._sampled.view(torch.int32)
            self._versions = list(map(_version_of, self._parameters.tensors))

    def _keep(self, vector: Tensor) -> None:
        if not self._kept_views:
            self._kept = torch.empty_like(self._vector)
            self._kept_views = self._parameters.views(self._kept)
        self._kept.copy_(vector)

    @property
    def trusts(self) -> bool:
        """True if the module looked at the followed vector, at the last look, and is not watched closely."""
        return self._there and not self._close and self._vector is self._followed

    def showed(self, vector: Tensor) -> bool:
        """Return True if the module looked at `vector` at the last look, as it was made to, and no parameter is
        rounded. Valid while only this session can have changed the vector since."""
        return self._vector is vector and not self._always and self._there

    def look(self, row: Tensor | None) -> None:
        """Note the values at which a further gradient of a step is taken, if they are not those that were shown.

        Args:
            row: (P,) the values that were shown, on any device; None: only this watch knows them.
        """
        self._looks_there()
        if self.trusts:
            return
        kept = self._kept.index_select(0, self._sample) if self._close else self._sampled
        if self._there and not self._always and _same_bits(self._vector.index_select(0, self._sample), kept):
            return
        if not self._close and row is not None:
            self._keep(row)
            self._close = True
        self._returns = True
        self._away = [value.clone() for value in self._values()]

    def check(self) -> None:
        """Check that the module's parameters are those that were attached.

        Raises:
            UserError: a parameter was replaced, moved, cast or unfrozen; names it.
        """
        self._parameters.settle()
        self._looks_there()
        if not all(map(is_, map(dict.get, self._tables, self._keys), self._known)):
            name = next(name for name, there, key, p in self._places if there.get(key) is not p)
            raise UserError(
                f"rank {self._rank}: parameter {name} was replaced by another after the module was attached "
                "(load_state_dict(assign=True), a wrapper such as FullyShardedDataParallel or fully_shard, "
                f"parametrizations, pruning). {ATTACH_AGAIN} Of torch.func.functional_call with other values call "
                "session.begin_step() before."
            )
        for name, frozen in self._frozen:
            if frozen.requires_grad:
                raise UserError(
                    f"rank {self._rank}: parameter {name} requires a gradient now, and did not when the module was "
                    f"attached: the other learners would not hear of it. {ATTACH_AGAIN}"
                )
        if self._there:
            return
        for name, p, at in zip(self._parameters.names, self._parameters.tensors, self._at, strict=True):
            if p.data_ptr() != at.data_ptr() and (p.shape, p.dtype, p.device) != (at.shape, at.dtype, at.device):
                raise UserError(
                    f"rank {self._rank}: parameter {name} is {p.dtype} on {p.device} now, and was {at.dtype} on "
                    f"{at.device} when the module was attached (module.to, .half, .data = ...). {ATTACH_AGAIN}"
                )

    def check_all(self) -> None:
        """Check as `check` does, and also that the module has no other trainable parameters.

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
        changed = [name for (name, p), was in zip(self._frozen, self._frozen_as, strict=False) if _glance(p) != was]
        if changed:
            self._frozen_as = []
            log.warning(
                f"rank {self._rank}: parameters {some(changed)} require no gradient and have changed since the module "
                "was attached (an average of others, merged weights): no exchange, common model or save has them. "
                "Each learner keeps its own: save them in `also`, and where all are to have the same, make them "
                "inside session.consensus()."
            )

    def changes(self) -> "Changes | None":
        """Check as `check` does; return changes made by hand since `show`, to be taken over; None if there are none.

        Raises:
            UserError: as `check`.
        """
        self.check()
        if self.trusts or (  # a watch by less finds nothing at the first look, as nearly always
            not self._close
            and self._there
            and list(map(_version_of, self._parameters.tensors)) == self._versions
            and torch.equal(self._vector.index_select(0, self._sample).view(torch.int32), self._sampled_bits)
        ):
            return None
        found = self._differences()
        back = [number for number, (now, was) in found.items() if self._came_back(number, now, was)]
        if not self._alone:
            values = self._values()
            for number in back:
                _, was = found.pop(number)
                if was is not None:
                    values[number].copy_(was)
        if not found:
            return None
        if not self._said and len(found) > len(back) * self._alone:
            self._said = True
            log.warning(
                f"rank {self._rank}: parameters {some([self._parameters.names[n] for n in found])} were changed by "
                "hand, not by the optimizer attached; such changes are taken over into this learner's row."
            )
        return Changes(self._parameters, self._kept_views, found)

    def drop(self) -> None:
        """Warn of changes made by hand since `show`, which are not taken over."""
        self._looks_there()
        found = self._differences(counters=False)  # a change that was taken back leaves a counter higher
        if found:
            log.warning(
                f"rank {self._rank}: parameters {some([self._parameters.names[n] for n in found])} were changed inside "
                "session.consensus(), which holds the model to evaluate: the change is dropped. Make it outside."
            )

    def _differences(self, counters: bool = True) -> "Differences":
        values = self._values()
        if not self._close:
            return {number: (values[number].clone(), None) for number in self._suspects(values, counters)}
        before = [kept.to(value.dtype) for kept, value in zip(self._kept_views, values, strict=True)]
        pairs = enumerate(zip(values, before, strict=True))
        return {number: (now.clone(), was.clone()) for number, (now, was) in pairs if not _same_bits(now, was)}

    def _came_back(self, number: int, now: Tensor, was: Tensor | None) -> bool:
        """Return True if parameter `number` has been away and is back at `was`, but for the rounding of two sums and
        two differences."""
        if self._away is None or was is None:
            return False
        away = self._away[number]
        if not (now.shape == was.shape == away.shape and now.dtype == was.dtype and now.device == was.device):
            return False
        bound = (was.float().abs() + away.float().abs()) * (2 * torch.finfo(was.dtype).eps)
        return bool(((now.float() - was.float()).abs() <= bound).all())

    def _values(self) -> list[Tensor]:
        """Return the values of the parameters (T) as they are."""
        if self._there:
            return self._at
        pairs = zip(self._parameters.tensors, self._at, strict=True)
        return [at if p.data_ptr() == at.data_ptr() else p.detach() for p, at in pairs]

    def _looks_there(self) -> None:
        """Note whether every parameter still looks at the tensor it was shown."""
        self._there = list(map(Tensor.data_ptr, self._parameters.tensors)) == self._addresses

    def _suspects(self, values: Sequence[Tensor], counters: bool) -> list[int]:
        """Return the numbers of parameters that look elsewhere at other values, whose counters tell of a write, or that
        differ where they are sampled. (Recurrent layers on a GPU lay out their weights anew in a forward:
        `flatten_parameters`.)"""
        elsewhere = [number for number, at in enumerate(self._at) if values[number] is not at]
        found = {number for number in elsewhere if not _alike(values[number], self._at[number])}
        if self._vector is self._followed:
            return sorted(found)
        if counters and (now := list(map(_version_of, self._parameters.tensors))) != self._versions:
            found |= {number for number, before in enumerate(self._versions) if now[number] != before}
        sample = self._vector.index_select(0, self._sample)
        if not _same_bits(sample, self._sampled):
            different = sample.view(torch.int32) != self._sampled.view(torch.int32)
            found |= set(self._owner[different.nonzero().flatten().cpu()].tolist())
        return sorted(found)


Differences = dict[int, tuple[Tensor, Tensor | None]]
"""Values of changed parameters, by number: as they are, and as they were shown (None: not known)."""


def _spread(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return places to sample in a vector of parameters of these sizes, at most `SAMPLED` of each, and the number of
    the parameter that each place is in."""
    first, places, owner = 0, [], []
    for number, size in enumerate(sizes):
        count = min(size, SAMPLED)
        places.append(first + torch.arange(count) * size // max(1, count))
        owner.append(torch.full((count,), number))
        first += size
    return torch.cat(places).to(device), torch.cat(owner)


class Changes:
    """Changes of parameters by hand: by number, values as they are now and as they were shown."""

    def __init__(self, parameters: Parameters, kept: Sequence[Tensor], by_number: Differences) -> None:
        self._parameters, self._by_number = parameters, by_number
        self._kept = {number: kept[number].clone() for number, (_, before) in by_number.items() if before is not None}

    def add_to(self, row: Tensor) -> None:
        """Add the changes to `row` (P,); an element that still was as shown gets the new value itself."""
        views = self._parameters.views(row)
        for number, (now, before) in self._by_number.items():
            view, there = views[number], now.to(row.device, torch.float32)
            if before is None:
                view.copy_(there)
                continue
            kept, was = self._kept[number].to(row.device), before.to(row.device, torch.float32)
            added = torch.where(view == kept, there, view + (there - was))
            view.copy_(torch.where(there == was, view, added))

    @property
    def fingerprint(self) -> int:
        """Checksum of the new values; not 0."""
        found = 1
        for number, (now, _) in self._by_number.items():
            found = crc32(now.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(), found + number)
        return found or 1


def _alike(a: Tensor, b: Tensor) -> bool:
    """Return True if both tensors have the same shape, type, device and bits."""
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and _same_bits(a, b)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Return True if all bits of both tensors are the same; so NaN equals itself."""
    kind = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.view(kind), b.view(kind)) if a.is_contiguous() else torch.equal(a, b)


def _glance(p: Tensor) -> int | None:
    """Return a checksum of a few values of a parameter."""
    flat = local(p).reshape(-1)
    return fingerprint([flat[:: max(1, flat.numel() // SAMPLED)]], None)


def some(names: Sequence[str]) -> str:
    """Return the first few of `names` as text."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
