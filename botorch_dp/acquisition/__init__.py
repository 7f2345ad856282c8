"""BoTorch acquisition functions: they know models, not privacy."""
