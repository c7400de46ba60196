"""What a strategy makes of a model: the list of passes, and what each reads, exchanges and writes."""
