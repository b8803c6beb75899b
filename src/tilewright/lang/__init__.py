"""The language front end: Python functions → tile IR."""
