"""Every buffer of a run, on each device and on the host, with its exact size."""
