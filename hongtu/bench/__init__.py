"""The harness: systems and this machine timed on the same artifact, and the page that shows what came out.

Uses: everything beneath.
"""
