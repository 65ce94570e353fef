import gc
import os

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # in the processes that tests start, too


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small problems, and several test processes side by side."""
    torch.set_num_threads(1)


def pytest_collection_finish():
    """What was imported stays, so the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def plain_gradients(monkeypatch):
    """Offsets have true gradients, to be compared with those of obvious versions."""
    from splinenets.layers import SplineLayer
    from splinenets.projection import Projection

    for kind in (SplineLayer, Projection):
        monkeypatch.setattr(kind, "balanced", False)


@pytest.fixture(scope="session")
def static_and_spline(tmp_path_factory):
    """Two trained runs, to look at and not to touch."""
    from tests.helpers import subjects

    folder = tmp_path_factory.mktemp("runs")
    return subjects.train_small(folder / "static", "static"), subjects.train_small(folder / "spline", "H(5)-D-R3")
