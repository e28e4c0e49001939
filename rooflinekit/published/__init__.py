"""What is published rather than fitted: language models by name, and the stated numbers of the time model."""
