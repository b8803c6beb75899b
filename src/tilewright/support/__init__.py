"""What every room stands on."""

from time import time_ns

# of the first import of anything that compiles: sources that change later are not what runs
LOADED_AT = time_ns()
