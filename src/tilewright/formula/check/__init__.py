"""Whether a stream computes what its formula says: models of numbers, and what they prove."""
