"""Passes that bring texts into one form, before layouts and overlap are chosen."""
