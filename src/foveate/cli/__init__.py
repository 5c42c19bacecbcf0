"""The command line: one file per subcommand, each thin: parse, call the library, print."""
