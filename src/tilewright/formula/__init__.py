"""The math level: from a formula to the text of a tile program."""
