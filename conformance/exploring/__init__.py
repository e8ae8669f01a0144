"""Fresh calls of what a target claims: drawn, certified on the spot, reduced, explained."""
