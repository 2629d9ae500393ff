"""A file for each group of commands: options, the call, and the text it prints."""
