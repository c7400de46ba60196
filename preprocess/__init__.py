"""From edges to an artifact: read, clean, partition, order, chunk, write. No torch.

Uses: the top; ``graph``.
"""
