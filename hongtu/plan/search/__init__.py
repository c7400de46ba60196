"""Which of the possible plans a budget and a machine ask for."""
