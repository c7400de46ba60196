"""The ``hongtu`` command: one file for each subcommand.

Uses: the top; ``graph``, ``kernels``, ``ranks``, ``preprocess``, ``plan``, ``nn``, ``pyg``, ``device``, ``model``,
``engine``, ``train`` and ``bench``.
"""
