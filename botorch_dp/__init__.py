"""Differentially private Bayesian optimization on BoTorch, GPyTorch and Opacus."""

__version__ = "0.1.0"
