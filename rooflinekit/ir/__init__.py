"""What a workload is, without torch."""
