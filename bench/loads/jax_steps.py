# SPDX-License-Identifier: Apache-2.0
"""Training steps on the CPU: XLA compiles them into anonymous memory. Prints steps per CPU second on exit (SIGTERM)."""

import signal
import sys
import time

import jax
import jax.numpy as jnp

running = True


def stop(*_: object) -> None:
    global running
    running = False


def loss(weights, x, y):
    hidden = jnp.tanh(x @ weights[0])
    return jnp.mean((jnp.sin(hidden @ weights[1]) - y) ** 2)


@jax.jit
def step(weights, x, y):
    gradients = jax.grad(loss)(weights, x, y)
    return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    weights = [jax.random.normal(keys[0], (128, 256)), jax.random.normal(keys[1], (256, 16))]
    x, y = jax.random.normal(keys[2], (64, 128)), jax.random.normal(keys[3], (64, 16))
    used = time.process_time()  # start-up is not the load
    start, limit, rounds = time.monotonic(), float(sys.argv[1]) if len(sys.argv) > 1 else 1e9, 0
    while running and time.monotonic() - start < limit:
        weights = step(weights, x, y)
        rounds += 1
        if rounds % 50 == 0:
            weights[0].block_until_ready()
    print(f"{rounds / (time.process_time() - used):.1f}")


main()
