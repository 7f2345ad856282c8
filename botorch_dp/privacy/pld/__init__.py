"""Privacy-loss distributions: from what mechanisms may reveal to (epsilon, delta), numerically.

:mod:`.gaussian` is exact; :mod:`.distributions` discretizes what is not, :mod:`.fourier` adds such
losses up, and :mod:`.composition` takes the best bound that applies. :mod:`.renyi` has divergences.
"""
