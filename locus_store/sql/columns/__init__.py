"""Column types, expressions and compiled statements."""
