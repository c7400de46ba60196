"""A run: its directory, its log and its progress."""
