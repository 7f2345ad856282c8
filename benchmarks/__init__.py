"""One script for each claim about speed or quality: ``python -m benchmarks`` runs them all."""
