"""The reference of packed, paged, latent and merged attention, in steps that a defect replaces."""
