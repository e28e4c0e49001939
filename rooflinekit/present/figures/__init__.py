"""Figures with matplotlib: a file a figure, and what they share."""
