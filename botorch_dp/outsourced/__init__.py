"""Outsourced optimization: a curator who holds the rows, a modeler who searches them."""
