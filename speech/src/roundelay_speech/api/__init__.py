"""Functions of speech that `import roundelay` offers, and that the command line is a layer over (docs/python.md)."""
