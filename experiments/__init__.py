"""Measurements and demonstrations; nothing imports them."""
