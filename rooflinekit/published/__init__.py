"""Language models whose dimensions are known by name."""
