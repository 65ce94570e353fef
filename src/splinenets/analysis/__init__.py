"""Seeing what a SplineNet does: figures, a report in one file, and a page where an image travels the splines."""
