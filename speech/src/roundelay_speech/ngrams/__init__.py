"""n-gram models with back-off, as arrays, and their estimation: of words, and of spelling beside phones"""
