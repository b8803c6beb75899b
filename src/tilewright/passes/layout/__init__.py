"""Passes that choose layouts and instructions: fragments, shared memory, copies, gemms."""
