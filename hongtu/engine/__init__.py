"""Replays a plan: passes batch by batch, exchanges between them, one chunk after the other on every device.

Uses: the top modules, ``graph``, ``kernels``, ``plan``, ``nn``, ``device`` and ``model``.
"""
