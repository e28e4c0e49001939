"""Predictions → answers."""
