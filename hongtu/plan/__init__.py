"""What moves when: transfer plans, passes, placement and predicted costs. Pure numpy and numba."""
