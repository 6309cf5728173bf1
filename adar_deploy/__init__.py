"""The command line of adar-deploy: it parses options, calls the packages and prints. It does no maths."""
