"""Other projects' tests, and programs of their users, on this package: `make peers` runs all."""
