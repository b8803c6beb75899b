"""The judge of emitted CUDA C++ on machines without a GPU: compiled for the host, and run.

asm.py       `asm` statements as calls of functions that mean their instructions
ptx.h        these functions; cuda.h: the words of CUDA that are not in the generated text
threads.cpp  threads as fibers, in an order that is drawn; copies.cpp: what is done later
build.py     the compiler and its flags
judge.py     arguments in, results out
extremes.py  programs of single operations on the ends of every type
"""
