"""Which kernels compute a formula: a search over laws and groupings, by price."""
