"""`roundelay claims`: claims of papers, with experiments, rules of their verdicts, and evidence.

A claim is one file of `catalogue/`, its evidence one file of `evidence/`; both come with the package.
"""
