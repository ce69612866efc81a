"""The Llama training step in JAX, one jitted function with donated state. Arguments: see recipe.py."""
import sys
from functools import partial

import jax
import jax.numpy as jnp

from recipe import Recipe


def loss_of(weights, ids, labels, m, dtype):
    """Mean cross entropy; matmuls and activations in `dtype`, norms, softmax and loss in f32."""
    rows, seq = ids.shape
    half = jnp.arange(0, m.head_dim, 2, dtype=jnp.float32) / m.head_dim
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] / m.rope_theta**half
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]

    def norm(x, scale):
        x = x.astype(jnp.float32)
        return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + m.norm_eps) * scale).astype(dtype)

    def linear(x, weight):
        return jnp.einsum("bsi,oi->bso", x, weight.astype(dtype))

    def rotate(x):
        a, b = jnp.split(x.astype(jnp.float32), 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(dtype)

    x = weights["model.embed_tokens.weight"][ids].astype(dtype)
    for layer in range(m.layers):
        def w(name):
            return weights[f"model.layers.{layer}.{name}.weight"]

        h = norm(x, w("input_layernorm"))
        q = rotate(linear(h, w("self_attn.q_proj")).reshape(rows, seq, m.heads, m.head_dim))
        k = rotate(linear(h, w("self_attn.k_proj")).reshape(rows, seq, m.kv_heads, m.head_dim))
        v = linear(h, w("self_attn.v_proj")).reshape(rows, seq, m.kv_heads, m.head_dim)
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(out.reshape(rows, seq, -1), w("self_attn.o_proj"))
        h = norm(x, w("post_attention_layernorm"))
        x = x + linear(jax.nn.silu(linear(h, w("mlp.gate_proj"))) * linear(h, w("mlp.up_proj")), w("mlp.down_proj"))
    logits = linear(norm(x, weights["model.norm.weight"]), weights["model.embed_tokens.weight"]).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def main():
    recipe = Recipe(sys.argv)
    dtype = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}[recipe.dtype]
    weights = {name: jnp.asarray(w) for name, w in recipe.weights.items()}
    recipe.weights = None
    decay = {name: recipe.weight_decay if recipe.decays(name) else 0.0 for name in weights}
    zeros = partial(jax.tree.map, jnp.zeros_like)
    state = (weights, zeros(weights), zeros(weights))

    @partial(jax.jit, donate_argnums=0)
    def update(state, ids, labels, rate, count):
        weights, m, v = state
        loss, grads = jax.value_and_grad(loss_of)(weights, ids, labels, recipe.model, dtype)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
        scale = jnp.minimum(1.0, recipe.clip / norm) if recipe.clip else 1.0
        grads = {n: g * scale for n, g in grads.items()}
        m = {n: recipe.b1 * m[n] + (1 - recipe.b1) * g for n, g in grads.items()}
        v = {n: recipe.b2 * v[n] + (1 - recipe.b2) * g * g for n, g in grads.items()}
        mc, vc = 1 - recipe.b1**count, 1 - recipe.b2**count
        weights = {n: p - rate * (m[n] / mc / (jnp.sqrt(v[n] / vc) + recipe.eps) + decay[n] * p) for n, p in weights.items()}
        return (weights, m, v), loss, norm

    def step(number, ids, labels, rate):
        nonlocal state
        state, loss, norm = update(state, ids, labels, rate, float(number + 1))
        jax.block_until_ready(state)
        return float(loss), float(norm)

    recipe.run(step)


main()
