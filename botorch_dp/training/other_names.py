"""What other libraries call our arguments, settings and losses: whoever writes it is told ours."""

from __future__ import annotations

from collections.abc import Iterable

from botorch_dp._checks import did_you_mean

#: Our word, and what Opacus, TensorFlow Privacy, Keras, Lightning and others call it.
_OURS = {
    "learning_rate": "lr step_size",
    "clip_norm": "max_grad_norm l2_norm_clip clipping_norm max_norm",
    "noise_multiplier": "sigma noise",
    "target_epsilon": "epsilon",
    "delta": "target_delta",
    "batch_size": "lot_size sample_size expected_batch_size",
    "epochs": "num_epochs n_epochs max_epochs num_train_epochs",
    "seed": "random_state generator",
    "on_point": "callback callbacks",
    "progress": "verbose",
    "model_factory": "model module",
    "loss": "criterion loss_fn",
    "data": "dataset data_loader",
    "optimizer": "optimiser",
    "schedule": "scheduler lr_scheduler",
    "relation": "neighboring_relation",
    "engine": "grad_sample_mode",
}
_OTHER_NAMES = {other: ours for ours, others in _OURS.items() for other in others.split()}
#: What needs no argument of ours, or is said elsewhere.
_NO_NEED = {
    "max_physical_batch_size": "Leave it out: large batches are processed in parts anyway.",
    "microbatches": "Leave it out: gradients are clipped record by record.",
    "num_microbatches": "Leave it out: gradients are clipped record by record.",
    "poisson_sampling": "Say it when the trainer is made: sampling='poisson', the default.",
    "secure_mode": "Say publish=True: the noise then comes from the operating system.",
    "steps": "Give `epochs`: a run takes epochs * (num_records // batch_size) steps.",
}
_LOSSES = {
    "botorch_dp.training.logistic_loss": "logistic log log_loss logloss bce binary_crossentropy",
    "botorch_dp.training.cross_entropy_loss": "cross_entropy crossentropy categorical_crossentropy",
    "botorch_dp.training.hinge_loss": "hinge",
    "torch.nn.MSELoss()": "mse squared squared_error mean_squared_error",
    "torch.nn.L1Loss()": "mae absolute absolute_error mean_absolute_error",
}


def refuse_unknown(
    names: Iterable[str], known: Iterable[str], where: str, elsewhere: Iterable[str] = ()
) -> None:
    """Raise ``TypeError`` for the first name that is no argument, with ours for what was meant.

    Args:
        names: Of the arguments that were given.
        known: Of the arguments that there are.
        where: What was called.
        elsewhere: Names of settings, which are given to ``plan`` and ``fit``.
    """
    known = list(known)
    for name in names:
        if name in known:
            continue
        ours = _OTHER_NAMES.get(name, name)
        if name in _NO_NEED:
            hint = _NO_NEED[name]
        elif ours in known:
            hint = f"Here it is called {ours!r}."
        elif ours in elsewhere:
            hint = f"Give {ours!r} to `plan` and `fit`."
        else:
            hint = did_you_mean(name, known).strip()
        raise TypeError(f"{where} has no argument {name!r}. {hint}".rstrip())


def hint_for_loss(name: str) -> str:
    """What to pass in place of a loss's name."""
    word = name.lower()
    if "acc" in word:
        return "Accuracy has no gradient: it is the default `metric`. Train with a loss."
    return next((f"Pass {ours}." for ours, words in _LOSSES.items() if word in words.split()), "")
