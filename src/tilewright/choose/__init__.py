"""What a text leaves open, chosen by a model of the chip."""
