"""Surrogates of a user's own."""


class OnlyDensityAndGradient:
    """Another surrogate, with no more of it than a step asks for: run by Python, not compiled.

    Parameters
    ----------
    surrogate : Surrogate
        Fitted.
    """

    def __init__(self, surrogate):
        self._surrogate = surrogate
        self.n_features_in_ = surrogate.n_features_in_
        self.n_calls = 0

    def log_density(self, X):
        self.n_calls += 1
        return self._surrogate.log_density(X)

    def gradient(self, X):
        self.n_calls += 1
        return self._surrogate.gradient(X)
