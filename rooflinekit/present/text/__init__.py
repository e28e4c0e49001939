"""Answers as lines and tables in a terminal."""
