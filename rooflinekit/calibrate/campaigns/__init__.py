"""What was measured: rows of campaigns, checked, merged, and as work that the time model takes."""
