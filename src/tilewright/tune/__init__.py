"""Measuring what the model only estimates: which of a kernel's candidates is fastest here."""
