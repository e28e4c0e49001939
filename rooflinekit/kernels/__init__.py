"""What runs: ops → kernels, as eager execution and torch.compile launch them, by the libraries of each vendor."""
