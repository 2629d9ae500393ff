"""`roundelay claims`: claims of papers, with the experiments that test them, the rules of their verdicts, and evidence.

A claim is one file of `catalogue/`, its evidence one file of `evidence/`; both come with the package.
"""
