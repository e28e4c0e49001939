"""Answers → text, figures and files. Nothing here computes a time."""
