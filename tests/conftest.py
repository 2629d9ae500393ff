"""What all tests share."""

import os

from hypothesis import settings

# Machines that run other things too are slow at times; the limit of pytest-timeout is limit enough. Every run draws the
# same examples: whether a change is taken must not hang on luck. `HYPOTHESIS_PROFILE=explore` looks for new ones.
settings.register_profile("roundelay", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "roundelay"))
