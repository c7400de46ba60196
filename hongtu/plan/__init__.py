"""What moves and runs, when and where: passes, transfers, memory, predicted bytes and seconds. No torch.

Uses: the top; ``graph``.
"""
