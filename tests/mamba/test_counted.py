"""The counter of waits: what it counts and refuses, on which every count of zero relies."""

from typing import Any

# `d`, `m`, `s`: numbers, a mask and a scalar on the device; `h`, `b`, `n` those on the host.
AS_ON_A_GPU: dict[str, int | str] = {
    # what stays where it is
    "d + s; d + n; d * 2; d[1:3]; d[n]; d[:n]; d[n:] = 4; d[1:] = n": 0,
    "h[b]; h[h]; h[n] = 5; torch.tensor([1, 2]); torch.cat([h, h]).tolist()": 0,
    "d[d]; torch.where(m, d, n); torch.cat([d, d]); d.index_select(0, d); d[d + 0] = d * 2": 0,
    "torch.zeros(3, device=D) + d[:3]; torch.zeros_like(d) + d; d.view_as(h) + d": 0,
    "launch('kernel', d, [m, 5], s)": 0,
    "torch.tensor(d) + d; torch.as_tensor(d) + d; d.new_zeros(5) + d": 0,
    # from the device to the host
    "bool(m.any())": 1,
    "int(s); float(s); h[s]; [5, 6, 7, 8][s]": 4,
    "d.tolist(); d.cpu(); d.to('cpu'); d.numpy(); s.item()": 5,
    "d.cpu()[b]; d.cpu() + h": 2,
    "d[m]; m.nonzero(); torch.where(m); d.masked_select(m); d[m] = 1": 5,
    "d[:s]; d[s:]; d[s]": 3,
    "torch.arange(s); torch.zeros(s); d.clamp(0, s)": 3,
    "h.copy_(d); h + h": 1,
    "h[1:] = d[1:]": 1,
    "torch.tensor([s, s])": 2,
    "d.repeat_interleave(d)": 1,
    # from the host to the device
    "torch.tensor([1, 2], device=D)": 1,
    "h.to(D) + d; h.type_as(d) + d": 2,
    "h.to(D, non_blocking=True) + d; d.copy_(h, non_blocking=True)": 0,
    "d.copy_(h)": 1,
    "d[b]; d[h]; d[[0, 1]]": 3,
    "d[1:] = h[1:]": 1,
    "d[1] = n": 1,
    "d[d + 0] = n": 1,
    "d.new_tensor([1, 2]) + d[:2]": 1,
    # what a GPU refuses
    "d + h": "refused",
    "h[d]": "refused",
    "h[m]": "refused",
    "d[d + 0] = h": "refused",
    "torch.where(m, d, h)": "refused",
    "torch.where(b, d, d)": "refused",
    "torch.cat([d, h])": "refused",
    "torch.stack([s, n])": "refused",
    "d.index_select(0, h)": "refused",
    "d & (d > h)": "refused",
    "h.add_(d)": "refused",
    "launch('kernel', d, h)": "refused",
    "launch('kernel', d, n)": "refused",
}


def test_it_counts_and_refuses_as_a_gpu_does(found: Any) -> None:
    counts = found("0.5.23", "counted", "counted", statements=tuple(AS_ON_A_GPU))
    assert counts == AS_ON_A_GPU
