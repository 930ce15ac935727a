"""Custom-resource models: the single source for CRDs, defaults, validation and the translation to admin calls (design D9)."""
