"""GPUs, sizes and numbers of devices beside each other."""
