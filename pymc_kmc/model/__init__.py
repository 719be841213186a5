"""The model for a sampler: a vector in, one counted evaluation out, noise kept."""
