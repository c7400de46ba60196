"""Replays a plan: pass by pass, batch by batch, one chunk on every device.

Uses: the top; ``graph``, ``kernels``, ``ranks``, ``plan``, ``nn``, ``device`` and ``model``.
"""
