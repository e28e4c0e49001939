"""Many predictions at once, and searches in them."""
