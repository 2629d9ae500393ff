"""Options of strategies and of all else that a package describes, known without loading torch."""
