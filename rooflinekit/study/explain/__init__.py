"""Why two steps take what they take, and what would change it."""
