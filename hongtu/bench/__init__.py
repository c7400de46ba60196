"""Timing of this system and of others on the same artifact, and the page that shows what came out."""
