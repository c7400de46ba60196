"""The Trainer: plans a user's model, trains it, evaluates it, and saves what it learned.

Uses: the top; ``graph``, ``kernels``, ``ranks``, ``plan``, ``nn``, ``device``, ``model`` and ``engine``.
"""
