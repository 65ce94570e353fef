"""Cases that only ``make test-all`` runs, because a quick case of the same test says nearly as much."""

import pytest


def slow(*values, **more):
    """A case that takes long."""
    return pytest.param(*values, marks=pytest.mark.slow, **more)


def slow_where(is_slow, cases):
    """Cases, single values, of which some take long."""
    return [slow(case) if is_slow(case) else case for case in cases]
