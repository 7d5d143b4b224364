"""What a step costs: device-hours and the traffic that leaves a zone or a region."""

from __future__ import annotations

from hetcli.perf.configuration import Configuration
from hetcli.perf.hardware import Hardware, Node

__all__ = ["cost_per_step", "egress_price"]

# Prices are those of a device-hour.
SECONDS_PER_HOUR = 3600.0


def egress_price(hardware: Hardware, source: Node, target: Node) -> float:
    """Dollars for one byte from one node to another: the most specific pair of places with one."""
    for level in ("group", "fabric", "zone", "region"):
        a, b = sorted((getattr(source, level), getattr(target, level)))
        price = hardware.egress_per_byte.get((a, b))
        if price is not None:
            return price
    return 0.0


def cost_per_step(
    configuration: Configuration, hardware: Hardware, step_time_s: float, egress: float = 0.0
) -> float | None:
    """Dollars of one step: all devices for its duration, plus `egress` dollars of traffic.

    None when a node in use has no price.
    """
    counts: dict[str, int] = {}
    for device in configuration.devices:
        counts[device.node] = counts.get(device.node, 0) + 1
    rate = 0.0
    for name, count in counts.items():
        price = hardware.by_name[name].price_per_device_hour
        if price is None:
            return None
        rate += count * price
    return rate * step_time_s / SECONDS_PER_HOUR + egress
