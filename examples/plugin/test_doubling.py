"""The strategy of this package keeps Roundelay's laws."""

from roundelay.testing import laws

test_laws = laws("doubling", "doubling,period=3,doublings=1")
