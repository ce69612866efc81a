"""What every peer shares: the seed checkpoint, the batches, and the recipe of the run, as Lignum wrote them."""
import json
import math
import os
import re
import sys
import time
from dataclasses import dataclass

from safetensors.numpy import load_file


@dataclass
class Model:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float


class Recipe:
    """usage: NAME_train.py CHECKPOINT BATCHES CONFIG DTYPE STEPS THREADS [MODE]

    CHECKPOINT: a folder with config.json and model.safetensors. BATCHES: safetensors of `ids` and `labels`, i32
    [steps, rows, seq] (`lignum inspect batches`); the last one repeats. CONFIG: what `lignum inspect config --json`
    prints. A JSON line a step: step, loss before the update, gradient norm before clipping, learning rate.
    """

    def __init__(self, argv):
        folder, batches, config, self.dtype, steps, threads, *mode = argv[1:]
        self.steps, self.threads, self.mode = int(steps), int(threads), mode[0] if mode else ""
        with open(os.path.join(folder, "config.json")) as f:
            c = json.load(f)
        rope = c.get("rope_parameters") or {"rope_type": "default", "rope_theta": c["rope_theta"]}
        plain = rope["rope_type"] == "default" and c["tie_word_embeddings"] and not c.get("attention_bias") and not c.get("mlp_bias")
        if not plain:
            sys.exit(f"{folder}: the peers' Llama has plain RoPE, a tied head and no biases")
        self.model = Model(c["num_hidden_layers"], c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"],
                           c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"], c["rms_norm_eps"], rope["rope_theta"])
        self.weights = load_file(os.path.join(folder, "model.safetensors"))
        self._batches = load_file(batches)
        with open(config) as f:
            self.config = json.load(f)
        self.b1, self.b2 = self.config["adam_b1"], self.config["adam_b2"]
        self.eps, self.weight_decay = self.config["adam_eps"], self.config["adam_weight_decay"]
        self.clip = self.config["gradient_clipping_threshold"]
        if self.config["adam_eps_root"] != 0:
            sys.exit("adam_eps_root: the peers' AdamW has none")

    def batch(self, step):
        at = min(step, len(self._batches["ids"]) - 1)
        return self._batches["ids"][at], self._batches["labels"][at]

    def decays(self, name):
        return not any(re.search(pattern, name) for pattern in self.config["adamw_mask"])

    def learning_rate(self, step):
        """Linear warm-up from 0, then a cosine that ends at the final fraction (MaxText's schedule)."""
        c = self.config
        total = c["learning_rate_schedule_steps"] if c["learning_rate_schedule_steps"] > 0 else c["steps"]
        warm = int(total * c["warmup_steps_fraction"])
        if step < warm:
            return c["learning_rate"] * step / warm
        if step >= total:
            return 0.0
        part = (step - warm) / (total - warm - 1) if total - warm > 1 else 1.0
        cosine = 0.5 * (math.cos(math.pi * part) + 1)
        return c["learning_rate"] * (cosine + c["learning_rate_final_fraction"] * (1 - cosine))

    def run(self, one_step):
        """one_step(step, ids, labels, learning_rate) -> loss, gradient norm, both on the host."""
        for step in range(self.steps):
            rate = self.learning_rate(step)
            ids, labels = self.batch(step)
            begin = time.perf_counter()
            loss, norm = one_step(step, ids, labels, rate)
            seconds = time.perf_counter() - begin
            print(json.dumps({"step": step, "loss": loss, "grad_norm": norm, "learning_rate": rate, "seconds": seconds}), flush=True)
