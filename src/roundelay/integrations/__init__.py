"""`roundelay.attach` for other people's toolkits: a file for each, which imports it (docs/frameworks.md)."""
