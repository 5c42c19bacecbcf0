"""The work of the command line: one thin file per command that calls the library and prints."""
