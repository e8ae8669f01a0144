"""Defects of the judge, and the answers that show them."""
