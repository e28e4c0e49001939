"""What was measured of a step, beside its prediction."""
