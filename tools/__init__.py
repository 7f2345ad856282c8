"""What keeps the project in order: its map, its mutants, its faults."""
