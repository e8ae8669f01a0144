"""Links between requirements, cases, defects and tests, both ways, and the holes in them."""
