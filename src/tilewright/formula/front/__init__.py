"""Functions over symbolic arrays, in the names of the Array API, and the formulas they make."""
