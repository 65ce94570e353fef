"""Short trainings on the embedded images: what the regulariser is for. Minutes of work, so all are slow."""

import pytest
import torch
from benchmarks.information import alive, distance_from_uniform, train_classifier

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mean_over_seeds(key, seeds=2, **options):
    """The mean of a number per layer, as a tensor (layers,)."""
    runs = [train_classifier(seed, **options) for seed in range(seeds)]
    return torch.tensor([list(run[key].values()) for run in runs]).mean(0)


@pytest.mark.parametrize("estimator", ["bins", "kernel"])
@pytest.mark.parametrize("spec", ["D(5)-D-R3", "D(5)-D-R3 raw"])
def test_utilization_raises_the_entropy_of_every_layer(spec, estimator):
    options = {"spec": spec, "estimator": estimator, "specialization": 0.0}
    without, with_term = (mean_over_seeds("entropy", utilization=w, **options) for w in (0.0, 0.2))
    assert (with_term > without).all(), (without, with_term)
    if "raw" in spec:  # the paper's own projections start out under-used
        assert (with_term > 0.9).all()


@pytest.mark.parametrize("estimator", ["bins", "kernel"])
def test_specialization_raises_information_in_the_order_of_its_weight(estimator):
    options = {"estimator": estimator, "utilization": 0.2}
    weights = (0.0, 0.02, 0.06, 0.2)
    bits = [float(mean_over_seeds("bits", specialization=w, **options).sum()) for w in weights]
    assert bits == sorted(bits)
    assert bits[-1] > 1.3 * bits[0]


def test_fifty_bins_leave_the_fewest_artefacts():
    distances = {bins: distance_from_uniform(0, bins=bins)[0] for bins in (2, 3, 5, 50)}
    assert all(distances[50] < distances[few] for few in (2, 3, 5)), distances


@pytest.mark.parametrize("full_gradient", [False, True])
@pytest.mark.parametrize("estimator", ["bins", "kernel"])
def test_weights_of_a_fifth_are_stable_ten_times_of_ten(full_gradient, estimator):
    for seed in range(10):
        options = {"utilization": 0.2, "specialization": 0.2, "estimator": estimator}
        # at a rate of 0.05, the full gradient of bins has 9 of 10: docs/regularizer_study.md, stability and remedies
        run = train_classifier(seed, epochs=2, rate=0.03, full_gradient=full_gradient, **options)
        assert alive(run), run
