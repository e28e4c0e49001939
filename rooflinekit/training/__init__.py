"""A decoder's training step from its dimensions, on one GPU and on many."""
