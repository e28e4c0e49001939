"""The hardware at hand, and models that run on it."""
