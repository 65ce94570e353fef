import os
import re

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # in the processes that tests start, too

# Cases that take long, where another case of the same test is quick and says nearly as much: for `make test-all`.
LONG = re.compile(
    r"test_examples_run\[0(2_convert|4_inspect|5_export|6_slider)|test_pages_run\[figures|test_figures_as_files"
    r"|test_export.*test_exports_equal_the_network\[.*(pt2|onnx-throughput)|test_smaller_knots\[.*pt2"
    r"|test_a_pt2_file_needs_torch_alone|test_c_export|test_bench.py::test_latency|test_convert_and_train\[H"
    r"|test_bad_command_lines\[words[1-6]|test_frameworks.py::test_compile\[4|test_another_layout.*(double|LANES|NONE)"
    r"|test_runs_that_cannot_be_read_whole\[change[12]|test_two_ranks_equal_one\[H.*True|test_any_root\[own"
    r"|test_it_steps_aside\[environment[12]|test_every_function_in_every_state\[(deployed bf16|deployed twice|copied)-"
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if LONG.search(item.nodeid):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small problems, and several test processes side by side."""
    torch.set_num_threads(1)


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
