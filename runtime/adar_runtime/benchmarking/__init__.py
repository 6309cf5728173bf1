"""Alternating speed measurements. Used by `adar-deploy bench` and by benchmarks/."""
