"""The HTML page of `adar-deploy report`."""
