"""One file a command. Heavy imports are inside the functions: help has to answer at once."""
