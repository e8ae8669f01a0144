"""Attention that goes through keys or queries block by block, and where that goes wrong."""
