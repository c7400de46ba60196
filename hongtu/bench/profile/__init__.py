"""Measures this machine for a hardware profile."""
