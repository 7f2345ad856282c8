"""What ``make demo`` runs, and other complete programs to start from."""
