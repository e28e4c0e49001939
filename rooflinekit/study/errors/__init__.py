"""Of what a prediction's error consists, and how much of it two predictions have in common."""
