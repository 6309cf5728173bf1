"""The command line of adar-deploy: parses, calls, prints. No maths."""
