"""What an operator types: one module per command, each with `main(argv) -> int`, imported when it is asked for."""
