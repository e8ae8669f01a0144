"""The bank of planted defects: mistakes that people make, each of which some case must show."""
