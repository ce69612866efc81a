"""The Llama training step in PyTorch, as its users write it. Arguments: see recipe.py; MODE is eager or compile."""
import sys

import torch
import torch.nn.functional as F

from recipe import Recipe


class Llama(torch.nn.Module):
    def __init__(self, model, weights):
        super().__init__()
        self.model = model
        # Dots cannot stand in a parameter's name here.
        self.names = list(weights)
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.from_numpy(w.copy())) for w in weights.values()])
        self.index = {name: i for i, name in enumerate(self.names)}
        half = torch.arange(0, model.head_dim, 2, dtype=torch.float64) / model.head_dim
        self.register_buffer("inv_freq", (1.0 / model.rope_theta**half).float())

    def weight(self, name):
        return self.p[self.index[name]]

    def norm(self, x, name):
        return F.rms_norm(x, (self.model.width,), self.weight(name), self.model.norm_eps)

    def forward(self, ids, labels):
        m = self.model
        rows, seq = ids.shape
        angle = torch.arange(seq, dtype=torch.float32)[:, None] * self.inv_freq[None]
        cos, sin = (torch.cat([t, t], -1)[None, None] for t in (angle.cos(), angle.sin()))

        def rotate(x):
            a, b = x.chunk(2, -1)
            return (x * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)

        def heads(x, weight, count):
            return F.linear(x, weight).view(rows, seq, count, m.head_dim).transpose(1, 2)

        x = F.embedding(ids, self.weight("model.embed_tokens.weight"))
        for layer in range(m.layers):
            def w(name):
                return self.weight(f"model.layers.{layer}.{name}.weight")

            h = self.norm(x, f"model.layers.{layer}.input_layernorm.weight")
            q = rotate(heads(h, w("self_attn.q_proj"), m.heads))
            k = rotate(heads(h, w("self_attn.k_proj"), m.kv_heads))
            v = heads(h, w("self_attn.v_proj"), m.kv_heads)
            k, v = (t.repeat_interleave(m.heads // m.kv_heads, dim=1) for t in (k, v))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.linear(out.transpose(1, 2).reshape(rows, seq, -1), w("self_attn.o_proj"))
            h = self.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
            x = x + F.linear(F.silu(F.linear(h, w("mlp.gate_proj"))) * F.linear(h, w("mlp.up_proj")), w("mlp.down_proj"))
        logits = F.linear(self.norm(x, "model.norm.weight"), self.weight("model.embed_tokens.weight"))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    recipe = Recipe(sys.argv)
    torch.set_num_threads(recipe.threads)
    model = Llama(recipe.model, recipe.weights)
    recipe.weights = None  # the parameters are copies
    groups = [{"params": [p for n, p in zip(model.names, model.p) if recipe.decays(n) == decays],
               "weight_decay": recipe.weight_decay if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(recipe.b1, recipe.b2), eps=recipe.eps, fused=True)
    forward = {"eager": lambda f: f, "compile": torch.compile}[recipe.mode](model)
    mixed = {"float32": False, "bfloat16": True}[recipe.dtype]

    def step(number, ids, labels, rate):
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = forward(torch.from_numpy(ids).long(), torch.from_numpy(labels).long())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip or float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), norm.item()

    recipe.run(step)


main()
