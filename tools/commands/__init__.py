"""The subcommands of the command line, grouped by purpose. Each calls one function and prints its result."""
