"""What ``make demo`` runs: a Spline-LeNet and its static twin on the embedded images, side by side."""

from splinenets.cli import main

if __name__ == "__main__":
    main(["demo"])
