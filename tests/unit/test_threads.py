"""OpenMP's waiting policy: ours unless the user has one."""

import pytest

from roundelay.runtime.launch.c_libraries import wait_politely


@pytest.mark.parametrize("given", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_what_the_user_set_stays(given: dict[str, str]) -> None:
    environment = dict(given)
    wait_politely(environment)
    assert environment == given


def test_otherwise_threads_sleep_soon() -> None:
    environment: dict[str, str] = {}
    wait_politely(environment)
    assert environment == {"GOMP_SPINCOUNT": "1000"}
