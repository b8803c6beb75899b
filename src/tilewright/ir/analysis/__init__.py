"""What is known about a program: bounds, uniform values, accesses inside tiles."""
