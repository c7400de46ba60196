"""The harness: systems and this machine, timed on the same artifact, and the page about it.

Uses: the top; ``graph``, ``kernels``, ``ranks``, ``preprocess``, ``plan``, ``nn``, ``device``, ``model``, ``pyg``,
``engine`` and ``train``.
"""
