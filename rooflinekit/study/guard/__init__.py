"""A performance test: what a step was locked at, and what has changed since, because of what."""
