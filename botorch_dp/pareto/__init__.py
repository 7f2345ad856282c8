"""DPareto: the privacy-utility Pareto front of any private algorithm."""
