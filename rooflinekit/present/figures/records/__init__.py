"""What a roofline figure shows, as records that survive JSON: no drawing library."""
