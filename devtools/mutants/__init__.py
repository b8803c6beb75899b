"""Wrong kernels made from right ones, to measure what the sanitizer finds."""
