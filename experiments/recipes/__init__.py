"""Published recipes, each by one command: ``python -m experiments.recipes cora-gcn``."""
