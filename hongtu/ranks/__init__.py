"""Processes that train one graph together: what each holds of it, and what they tell each other.

Uses: the top; ``graph``.
"""
