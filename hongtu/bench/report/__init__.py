"""Results as lines, pictures and a page."""
