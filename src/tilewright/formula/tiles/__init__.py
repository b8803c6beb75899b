"""From formulas to the text of tile programs: kernels, loops, words."""
