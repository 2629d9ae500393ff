"""torch.distributed.checkpoint saves what learners have in common, by names of parameters, and any number goes on."""

from pathlib import Path
from typing import Any

import pytest

from support import dcp_script
from support.launched import reports, run_learners

SCRIPT = str(dcp_script.__file__)


def reported(learners: int, *options: str) -> list[dict[str, Any]]:
    """Reports, by rank."""
    return [one for _, one in sorted(reports(run_learners(learners, SCRIPT, *options).stdout)["dcp"].items())]


@pytest.mark.parametrize("strategy", ["adpsgd", "ssgd"])
def test_another_number_of_learners_goes_on_from_it(strategy: str, tmp_path: Path) -> None:
    """With the common model and the first learner's optimizer, to the bit; as from the session's own save."""
    first, second = reported(2, str(tmp_path), "--strategy", strategy)
    assert first["model"] == second["model"]
    for learners in (3, 1):
        found = reported(learners, str(tmp_path), "--strategy", strategy, "--load")
        assert {one["model"] for one in found} == {first["model"]}
        assert {one["memory"] for one in found} == {first["memory"]}
        assert all(one["rates"] == [0.02, 0.01] for one in found)
        assert all(one["apart"] < 1e-6 for one in found)
        assert len({one["end"] for one in found}) == 1 != found[0]["end"]
