"""Training steps on several devices, or with less memory: of traced networks and of described decoders."""
