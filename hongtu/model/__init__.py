"""A list of layers and its loss: what the engine runs.

Uses: the top; ``graph``, ``kernels`` and ``nn``.
"""
