"""The perplexity of a language model whose LoRA adapters are trained at several epsilons.

    OMP_NUM_THREADS=1 python -m benchmarks.causal_lm [--records 2000] [--seeds 3]

A small GPT-2 is trained on public synthetic text: words of which each determines the next in 80% of
the cases. In the private text half of the words are followed by others. The adapters are trained on
it with default settings, and, for comparison, by AdamW without noise and without clipping.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import BenchmarkParser, save_results
from benchmarks.tables import markdown, stored
from botorch_dp.training import DPTrainer, TrainTest, causal_lm_loss

LENGTH, WORDS, DELTA = 16, 64, 1e-5
EPSILONS = (0.3, 1.0, 3.0, 8.0)


def text(size: int, seed: int, *, public: bool = False) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    follows = torch.randperm(WORDS - 1, generator=torch.Generator().manual_seed(9)) + 1
    if public:
        follows[::2] = follows[::2].roll(1)
    ids = torch.randint(1, WORDS, (size, LENGTH), generator=draws)
    for place in range(1, LENGTH):
        usual = torch.rand(size, generator=draws) < 0.8
        ids[:, place] = torch.where(usual, follows[ids[:, place - 1] - 1], ids[:, place])
    mask = torch.arange(LENGTH) < torch.randint(8, LENGTH + 1, (size, 1), generator=draws)
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def labels(rows: dict[str, Tensor]) -> Tensor:
    return rows["input_ids"].where(rows["attention_mask"] > 0, -100)


def perplexity(model: nn.Module, rows: dict[str, Tensor]) -> float:
    with torch.no_grad():
        return math.exp(causal_lm_loss(model.eval()(**rows).logits, labels(rows)).mean())


def adam(model: nn.Module, rows: dict[str, Tensor], epochs: int) -> nn.Module:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, targets = torch.optim.AdamW(trained, lr=3e-3), labels(rows)
    for _ in range(epochs):
        for some in torch.randperm(len(targets)).split(100):
            optimizer.zero_grad()
            batch = {name: part[some] for name, part in rows.items()}
            causal_lm_loss(model.train()(**batch).logits, targets[some]).mean().backward()
            optimizer.step()
    return model


def table_causal_lm() -> str:
    found = stored("causal_lm")["perplexity"]
    names = {"pretrained": "pretrained only"} | {f"{e:g}": f"ε = {e:g}" for e in EPSILONS}
    head = [names.get(name, name) for name in found]
    return markdown(head, [[f"{each['mean']:.1f}" for each in found.values()]])


def main() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    parser = BenchmarkParser("causal_lm", __doc__, minutes=6)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    lora = LoraConfig("CAUSAL_LM", r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    pretrained = adam(GPT2LMHeadModel(shape), text(3000, 5, public=True), 12)

    def model() -> Any:
        return get_peft_model(copy.deepcopy(pretrained), lora)

    train, test = text(options.records, 0), text(400, 1)
    data = TrainTest(train, labels(train), test, labels(test))
    trainer = DPTrainer(model, causal_lm_loss, data)
    found: dict[str, list[float]] = {"pretrained": [perplexity(pretrained, test)]}
    for epsilon in EPSILONS:
        fits = [
            trainer.fit(target_epsilon=epsilon, delta=DELTA, seed=s) for s in range(options.seeds)
        ]
        found[f"{epsilon:g}"] = [perplexity(fit.model, test) for fit in fits]
    found["no privacy"] = [
        perplexity(adam(model(), train, 24), test) for _ in range(options.seeds)
    ]  # fmt: skip
    results: dict[str, Any] = {
        "options": {"records": options.records, "seeds": options.seeds, "delta": DELTA},
        "perplexity": {
            name: {"mean": sum(values) / len(values), "each": values}
            for name, values in found.items()
        },
    }
    save_results("causal_lm", results)
    print(results["perplexity"])


if __name__ == "__main__":
    main()
