"""From a person's model to numbers: the Trainer, its loop, snapshots and evaluation.

Uses: everything beneath, but ``preprocess``.
"""
