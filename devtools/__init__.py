"""Fuzzers, random schedules: tools of the people who build Tilewright, not in the wheel."""
