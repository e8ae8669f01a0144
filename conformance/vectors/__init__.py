"""The golden vectors: cases, the files that hold them, and their loader."""
