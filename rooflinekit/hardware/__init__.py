"""What datasheets say about GPUs and the hosts that drive them, read from YAML files and checked against physics."""
