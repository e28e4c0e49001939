"""What the CPU at hand spends on issuing work."""
