"""Whether the rules refuse what is right: correct implementations in many numerical styles on new random cases."""
