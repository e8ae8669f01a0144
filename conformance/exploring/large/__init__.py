"""Calls of production size whose right answer is known without an oracle, made and read beside the target."""
