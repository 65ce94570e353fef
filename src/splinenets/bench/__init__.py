"""Measurements: always side by side in one run, interleaved, medians."""
