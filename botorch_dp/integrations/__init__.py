"""What makes this package at home in other people's tools. Each module needs its own extra."""
