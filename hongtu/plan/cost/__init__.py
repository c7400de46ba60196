"""What a plan takes on a machine: work per device and pass, and the seconds of an epoch."""
