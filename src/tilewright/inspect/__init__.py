"""What `explain()` says and draws about a compiled kernel."""
