"""Trainers of private models: DP-SGD and DP-Adam, output perturbation."""
