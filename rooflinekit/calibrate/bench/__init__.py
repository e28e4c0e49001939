"""Plans carried out on the hardware at hand: clocks, samples, and the record that only grows."""
