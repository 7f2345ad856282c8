from __future__ import annotations

import math
import warnings

import pytest
import torch

from botorch_dp.privacy import BudgetExhausted, PrivacyBudget, PrivacyLedger
from botorch_dp.release import (
    UtilityWarning,
    release_lipschitz_maximum,
    release_maximum,
    release_noise_free_maximum,
)
from tests.release.maxima import EXACT, LIPSCHITZ, MECHANISMS, NOISY, VALUES, noisy

quiet = pytest.mark.filterwarnings("ignore::botorch_dp.release.utility.UtilityWarning")

RELEASES = {
    "noisy": (release_maximum, NOISY),
    "noise-free": (release_noise_free_maximum, EXACT),
    "Lipschitz": (release_lipschitz_maximum, LIPSCHITZ),
}

# (sqrt(C1 beta_T gamma_T / T) + c + q) / epsilon
NOISY_SCALES = [
    {
        "setting": (1000, 1.0, 1e-4, 50, 0.99, 0.1, 30.0),
        "icml2015": 8.968463243575544,
        "workshop2014": 8.702475525901049,
        "union_bound": 9.218807493222926,
    },
    {
        "setting": (36000, 0.1, 1e-6, 20, 0.9, 0.5, 8.0),
        "icml2015": 198.3941266355059,
        "workshop2014": 182.39769284954832,
        "union_bound": 207.43945952885292,
    },
    {
        "setting": (2, 10.0, 0.5, 1, 0.0, 2.0, 0.2),
        "icml2015": 1.6804068896408269,
        "workshop2014": 1.4586259801292285,
        "union_bound": 2.077476588307319,
    },
]


@pytest.mark.parametrize("edition", ["icml2015", "workshop2014", "union_bound"])
@pytest.mark.parametrize("case", NOISY_SCALES)
@quiet
def test_scale_of_the_noisy_maximum_is_the_papers(case, edition):
    arguments = noisy(*case["setting"])
    values = torch.zeros(arguments["steps"], dtype=torch.double)
    release = release_maximum(values, edition=edition, **arguments)
    assert release.scale == pytest.approx(case[edition], rel=1e-12)


@pytest.mark.parametrize(
    ("setting", "icml", "workshop"),
    [
        # (A exp(-tau t / (log t)^(d/4)) + c) / epsilon with t = T, and with t = 2
        ((1000, 1.0, 1e-4, 50, 2, 0.99, 1.0, 0.1), 0.8998524181103064, 1.606481609683975),
        ((36000, 0.1, 1e-6, 20, 5, 0.9, 3.0, 0.01), 60.138337615804275, 60.688897271442464),
        ((2, 10.0, 0.5, 2, 1, 0.0, 2.0, 2.0), 0.29090087494155037, 0.29090087494155037),
    ],
)
@quiet
def test_scale_of_the_noise_free_maximum_is_the_papers(setting, icml, workshop):
    names = ("num_choices", "epsilon", "delta", "steps", "dim", "dataset_correlation")
    arguments = dict(zip((*names, "amplitude", "rate"), setting, strict=True))
    values = torch.zeros(arguments.pop("steps"), dtype=torch.double)
    for edition, scale in {"icml2015": icml, "workshop2014": workshop}.items():
        release = release_noise_free_maximum(values, edition=edition, **arguments)
        assert release.scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "m", "lipschitz", "low", "high", "max_loss", "scale"),
    [
        (1.0, 100, 1.0, 0.5, 0.6, None, 2 / 100 + 1 / 3),
        (0.1, 5000, 2.0, 0.01, 0.02, 1.0, 10 * (1 / 5000 + 100)),
        (3.0, 1, 0.5, 1.0, 1.0, 10.0, 0.5 / 3),
    ],
)
@quiet
def test_scale_of_the_lipschitz_maximum_is_the_papers(
    epsilon, m, lipschitz, low, high, max_loss, scale
):
    release = release_lipschitz_maximum(
        VALUES,
        epsilon=epsilon,
        num_validation=m,
        lipschitz=lipschitz,
        lambda_min=low,
        lambda_max=high,
        max_loss=max_loss,
    )
    assert release.scale == pytest.approx(scale, rel=1e-12)
    assert release.guarantee.epsilon() == epsilon


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e300])
@quiet
def test_a_poisoned_value_raises_nothing(name, poison):
    release, arguments = RELEASES[name]
    values = VALUES.clone()
    values[3] = poison
    assert math.isfinite(release(values, **arguments).value)
    plain = MECHANISMS[name].statistic(values)
    if not poison > 0:
        assert plain == 1.0


@pytest.mark.parametrize("name", RELEASES)
@quiet
def test_guarantees_name_their_conditions(name):
    release, arguments = RELEASES[name]
    guarantee = release(VALUES, **arguments).guarantee
    assert guarantee == MECHANISMS[name].guarantee
    assert guarantee.status == "conditional"
    simulated = release(VALUES, unsafe_seed=1, **arguments).guarantee
    assert simulated.status == "none"
    text = str(guarantee)
    expected = {
        "noisy": ["Assumption 1", "0.99", "over that prior", "GP-UCB", "0.1", "one step"],
        "noise-free": ["Assumption 1", "0.99", "over that prior", "A = 1", "tau = 0.1"],
        "Lipschitz": ["100 validation", "at most 2", "1-Lipschitz", "from 0.5 to 0.6"],
    }[name]
    for words in expected:
        assert words in text
    if name == "Lipschitz":
        assert guarantee.epsilon() == 1.0
        assert "Gaussian" not in text
    else:
        assert guarantee.epsilon(1e-4) == pytest.approx(1.0)
        assert guarantee.epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    ("name", "overrides", "match"),
    [
        ("noisy", {"epsilon": -1.0}, "`epsilon`"),
        ("noisy", {"delta": 0.0}, "`delta`"),
        ("noisy", {"steps": 0}, "`steps`"),
        ("noisy", {"steps": 49}, "`values` must have shape 49"),
        ("noisy", {"num_choices": 0}, "`num_choices`"),
        ("noisy", {"noise_std": 0.0}, "`noise_std`"),
        ("noisy", {"noise_std": math.inf}, "`noise_std`"),
        ("noisy", {"information_gain": 0.0}, "`information_gain`"),
        ("noisy", {"information_gain": 0.1}, "`information_gain` = 0.1 is too small"),
        ("noisy", {"dataset_correlation": 2.0}, "`dataset_correlation`"),
        ("noisy", {"edition": "nips2014"}, "`edition`"),
        ("noisy", {"num_records": -1}, "`num_records`"),
        ("noise-free", {"dim": 0}, "`dim`"),
        ("noise-free", {"amplitude": 0.0}, "`amplitude`"),
        ("noise-free", {"rate": -1.0}, "`rate`"),
        ("noise-free", {"edition": "union_bound"}, "`edition`"),
        ("noise-free", {"values": VALUES[:1]}, "`steps` must be at least 2"),
        ("noise-free", {"values": VALUES.unsqueeze(-1)}, "`values`"),
        ("Lipschitz", {"num_validation": 0}, "`num_validation`"),
        ("Lipschitz", {"lipschitz": 0.0}, "`lipschitz`"),
        ("Lipschitz", {"lambda_min": 0.0}, "`lambda_min`"),
        ("Lipschitz", {"lambda_max": 0.4}, "`lambda_max` = 0.4 must not be below"),
        ("Lipschitz", {"max_loss": 0.0}, "`max_loss`"),
        ("Lipschitz", {"values": VALUES[:0]}, "`values`"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_spent(name, overrides, match):
    release, arguments = RELEASES[name]
    ledger = PrivacyLedger(budget=PrivacyBudget(10.0, 0.1))
    options = arguments | {"values": VALUES, "ledger": ledger} | overrides
    with pytest.raises(ValueError, match=match):
        release(options.pop("values"), **options)
    assert not ledger.entries()


@pytest.mark.parametrize("name", RELEASES)
@quiet
def test_ledger_is_charged_before_the_values_are_looked_at(name, monkeypatch):
    release, arguments = RELEASES[name]
    ledger = PrivacyLedger(budget=PrivacyBudget(1.5, 0.1))
    kind = type(MECHANISMS[name])
    plain, charged = kind.statistic, []

    def watched(self, values):
        charged.append(len(ledger.entries()))
        return plain(self, values)

    monkeypatch.setattr(kind, "statistic", watched)
    release(VALUES, ledger=ledger, **arguments)
    with pytest.raises(BudgetExhausted):
        release(VALUES, ledger=ledger, **arguments)
    assert charged == [1]


@pytest.mark.parametrize("name", RELEASES)
def test_warns_when_the_noise_drowns_the_answer(name):
    release, arguments = RELEASES[name]
    with pytest.warns(UtilityWarning, match="noise may drown") as caught:
        release(VALUES, **(arguments | {"epsilon": 0.01}))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        release(VALUES, **(arguments | {"epsilon": 100.0}))


@pytest.mark.parametrize("name", ["noisy", "noise-free"])
def test_warns_when_delta_is_not_below_one_over_n(name):
    release, arguments = RELEASES[name]
    with pytest.warns(UtilityWarning, match="1/10000:") as caught:
        release(VALUES, num_records=10_000, **(arguments | {"epsilon": 100.0}))
    assert caught[0].filename == __file__
