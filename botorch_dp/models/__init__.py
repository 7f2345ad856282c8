"""Gaussian-process parts that BoTorch lacks: they know no privacy."""
