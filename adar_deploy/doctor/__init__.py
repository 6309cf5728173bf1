"""The checks of `adar-deploy doctor`. Anything that could crash runs in a process of its own."""
