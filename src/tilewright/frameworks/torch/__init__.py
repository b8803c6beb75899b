"""`torch.compile(model, backend="tilewright")`: graphs of PyTorch become formulas."""
