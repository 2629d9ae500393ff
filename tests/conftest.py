"""What all tests share."""

from hypothesis import settings

# Machines that run other things too are slow at times; the limit of pytest-timeout is limit enough.
settings.register_profile("roundelay", deadline=None)
settings.load_profile("roundelay")
