"""How long it takes: kernels × machine → timings. The physics, and the only place for it."""
