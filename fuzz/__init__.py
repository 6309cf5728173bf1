"""Fuzzers of all readers of files from outside. `make fuzz` runs them."""
