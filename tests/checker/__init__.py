"""Reads programs before anything runs, and names the first instruction that cannot be right."""
