"""The verbs of the command line, grouped by what they are for; each turns arguments into one call and prints the
result."""
