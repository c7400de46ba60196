"""Which row sits in which slot from when to when, and the loads, pulls, pushes and flushes that follow."""
