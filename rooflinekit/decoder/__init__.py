"""A decoder-only language model by a dozen numbers, without torch, and the ops of its steps: inference and training."""
