"""Faults done to runs, inputs and artifacts, many at a time: ``python -m tests.faults`` writes docs/reliability.md."""
