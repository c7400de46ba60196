"""A preprocessed graph, on disk and in memory: the artifact, its chunks and their neighbour sets. No torch.

Uses: the top.
"""
