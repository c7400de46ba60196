"""What a model shows when it is run on a few rows: widths, memory, reads and writes, and what it must not do."""
