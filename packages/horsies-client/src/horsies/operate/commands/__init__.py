"""The operators' command line: one module for each command, with `main(argv) -> int`, imported when it is used."""
