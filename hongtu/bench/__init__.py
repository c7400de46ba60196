"""The harness: systems and this machine, timed on the same artifact, and the page about it.

Uses: all rooms beneath it but ``cuda_ext``.
"""
