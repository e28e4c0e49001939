"""Constants of the time model: measured ones, and priors for hardware that nobody measured."""
