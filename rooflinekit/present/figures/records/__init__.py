"""What a roofline figure shows, as records: no drawing library."""
