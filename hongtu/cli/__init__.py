"""The ``hongtu`` command: one file for each subcommand.

Uses: all rooms beneath it but ``cuda_ext``.
"""
