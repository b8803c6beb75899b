"""Questions about programs, each with one home.

- `aliases`: which names stand for the same memory; `effects`: what code touches and writes;
- `accesses`: the boxes that an op touches, whether two meet, and the event graph of a body;
- `flow`: the forward walk to a fixed point; `hazards`: what threads must not do out of order;
- `lifetimes`: from where to where contents matter; `uniform`: what differs between threads;
- `bounds`, `intervals`, `linear`, `trips`, `inside`: integers, how often loops run, indices out of
  range.
"""
