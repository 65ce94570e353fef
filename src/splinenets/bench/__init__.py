"""Measurements: everything that is compared is measured in turn, in one run."""
