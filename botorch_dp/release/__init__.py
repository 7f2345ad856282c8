"""Private releases of a Bayesian optimization: the maximizer and the maximum."""
