"""The commands of speech: options, the call, and the text each prints."""
