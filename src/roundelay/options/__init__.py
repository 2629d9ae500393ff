"""Options of strategies and of whatever a package describes, known without loading torch."""
