"""What other libraries need and call a training: whoever writes it is told what to write here."""

from __future__ import annotations

#: What needs no argument of ours, or is said elsewhere.
NO_NEED = {
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


def hint_for_loss(name: str) -> str:
    """What to pass in place of a loss's name."""
    word = name.lower()
    if "acc" in word:
        return "Accuracy has no gradient: it is the default `metric`. Train with a loss."
    return next((f"Pass {ours}." for ours, words in _LOSSES.items() if word in words.split()), "")
