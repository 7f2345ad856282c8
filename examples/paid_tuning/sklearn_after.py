"""Tune a private estimator of scikit-learn's kind, and pay for the tuning."""

from scipy.stats import randint
from sklearn.datasets import load_breast_cancer

from botorch_dp import PrivacyBudget, PrivateSelection
from botorch_dp.integrations.estimators import DPClassifier
from botorch_dp.integrations.sklearn import space_of
from botorch_dp.privacy import DPSGD

EPSILON, DELTA = 2.0, 1e-4
X, y = load_breast_cancer(return_X_y=True)
X = X / X.max(axis=0)
train_X, train_y, test_X, test_y = X[:400], y[:400], X[400:], y[400:]


def mechanism(config):
    steps = config["epochs"] * (400 // config["batch_size"])
    return DPSGD(batch_size=config["batch_size"], num_records=400, steps=steps)


def train(config, noise_multiplier):
    epsilon = mechanism(config).with_noise(noise_multiplier).epsilon(DELTA)
    classifier = DPClassifier(epsilon, delta=DELTA, bounds=(0, 1), classes=(0, 1), **config)
    classifier.fit(train_X, train_y)
    return classifier, classifier.score(test_X, test_y)


space = {"batch_size": randint(20, 101), "epochs": randint(2, 21)}
selection = PrivateSelection(train, space_of(space), mechanism=mechanism, num_scored=169,
                             budget=PrivacyBudget(EPSILON, DELTA), trials=8)  # fmt: skip
best = selection.run()
print(selection.plan(), best, sep="\n")
