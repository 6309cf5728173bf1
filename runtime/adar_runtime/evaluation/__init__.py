"""Metrics, accuracy along the trajectory, plots, and baselines that need no training."""
