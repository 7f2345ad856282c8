"""Tune a private estimator by scikit-learn's sampler. The printed epsilon ignores the tuning."""

from scipy.stats import randint
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import ParameterSampler

from botorch_dp.integrations.estimators import DPClassifier

EPSILON, DELTA = 2.0, 1e-4
X, y = load_breast_cancer(return_X_y=True)
X = X / X.max(axis=0)
train_X, train_y, test_X, test_y = X[:400], y[:400], X[400:], y[400:]


def train(config, epsilon):
    classifier = DPClassifier(epsilon, delta=DELTA, bounds=(0, 1), classes=(0, 1), **config)
    classifier.fit(train_X, train_y)
    return classifier, classifier.score(test_X, test_y)


space = {"batch_size": randint(20, 101), "epochs": randint(2, 21)}
best_score = -1.0
for config in ParameterSampler(space, 8):
    classifier, score = train(config, EPSILON)
    if score > best_score:
        best_score, best_classifier, best_config = score, classifier, config
print(best_config, best_score, (EPSILON, DELTA))
