"""One file per command. Heavy imports are inside the functions, so that --help is fast."""
