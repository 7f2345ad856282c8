"""Tune LoRA adapters that Opacus trains. The tuning is paid for."""

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from botorch_dp import PrivacyBudget, PrivateSelection, Real, SearchSpace
from botorch_dp.privacy import DPSGD, NeighboringRelation

EPSILON, DELTA, BATCH, EPOCHS = 8.0, 1e-4, 50, 2
shape = DistilBertConfig(vocab_size=30, dim=16, hidden_dim=32, n_layers=1, n_heads=2)
pretrained = DistilBertForSequenceClassification(shape).state_dict()  # yours: from_pretrained
tokens = torch.randint(1, 30, (600, 8))
labels = (tokens == 7).any(dim=1).long()
train_set = TensorDataset(tokens[:500], labels[:500])
test_tokens, test_labels = tokens[500:], labels[500:]


def train(config, noise_multiplier):
    torch.seed()  # secret noise, another one in each training
    model = DistilBertForSequenceClassification(shape)
    model.load_state_dict(pretrained)
    lora = LoraConfig(r=4, target_modules=["q_lin", "v_lin"], modules_to_save=["classifier"])
    model = get_peft_model(model, lora).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(train_set, batch_size=BATCH),
        noise_multiplier=noise_multiplier,
        max_grad_norm=config["clip_norm"],
    )
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            logits = model(input_ids=inputs).logits
            torch.nn.functional.cross_entropy(logits, targets).backward()
            optimizer.step()
    right = model.eval()(input_ids=test_tokens).logits.argmax(dim=1) == test_labels
    adapters = {n: p.detach() for n, p in model._module.named_parameters() if p.requires_grad}
    return adapters, right.double().mean().item()


added = NeighboringRelation.ADD_OR_REMOVE_ONE
training = DPSGD(batch_size=BATCH, num_records=500, steps=10 * EPOCHS, relation=added)
space = SearchSpace(learning_rate=Real(1e-3, 0.1, log=True), clip_norm=Real(0.1, 10, log=True))
selection = PrivateSelection(train, space, mechanism=lambda config: training, num_scored=100,
                             budget=PrivacyBudget(EPSILON, DELTA), trials=4)  # fmt: skip
print(selection.plan())
best = selection.run()
print(best)
