"""Timings → one step."""
