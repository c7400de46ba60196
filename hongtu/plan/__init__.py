"""What moves and runs, when and where: passes, transfers, memory and predicted seconds. No torch.

Uses: the top modules and ``graph``.
"""
