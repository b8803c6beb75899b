"""Questions about programs, each with one home.

- `aliases`: which names stand for the same memory; `effects`: what code touches and writes;
- `accesses`: the boxes that an op touches, and whether two meet; `dependences`: the event graph;
- `flow`: the forward walk to a fixed point; `hazards`: what threads must not do out of order;
- `lifetimes`: from where to where contents matter; `uniform`: what differs between threads;
- `bounds`, `intervals`, `trips`, `inside`: integers, how often loops run, indices out of range.
"""
