"""Layouts of memory and fragments: records, algebra, bank conflicts, drawings."""
