"""Kernel × Machine → Timing: the physics, and the only place for it."""
