"""What a plan ends in: the program that the engine runs, printed, checked and summed up without running it."""
