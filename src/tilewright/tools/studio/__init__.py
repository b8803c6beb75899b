"""The studio: a page in which a kernel is watched while it runs, made from data that the compiler,
the simulator and the interpreter have."""
