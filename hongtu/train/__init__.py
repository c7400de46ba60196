"""From a person's model to numbers: the Trainer, its loop, snapshots and scores.

Uses: ``engine`` and what it uses.
"""
