"""The ``hongtu`` command: one file for each subcommand.

Uses: everything beneath.
"""
