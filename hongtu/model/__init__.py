"""A list of layers and its loss: what the engine runs.

Uses: the top modules, ``graph``, ``kernels`` and ``nn``.
"""
