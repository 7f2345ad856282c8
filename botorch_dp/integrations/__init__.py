"""What makes the package at home in other people's loops; most need an extra of their name."""
