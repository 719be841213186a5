"""The model as a sampler sees it: a vector in, one counted evaluation out, noise kept."""
