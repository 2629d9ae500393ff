"""A packed model in Kaldi's terms: final.mdl, tree, HCLG and options (docs/exporting.md#kaldi)."""
