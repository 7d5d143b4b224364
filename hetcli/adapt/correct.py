"""Measured factors of a run, written into the rates that the next plan is made from."""

from __future__ import annotations

from hetcli.errors import ConfigurationError
from hetcli.spec.base import Origin
from hetcli.spec.hardware import ComputeRates, HardwareFile, LayerTimes
from hetcli.spec.observation import Correction, Observation

__all__ = ["corrected"]


def corrected(hardware: HardwareFile, observation: Observation) -> HardwareFile:
    """The hardware with compute times multiplied by what the run showed of each device type.

    Raises ConfigurationError when it has no rates of any device that was corrected.
    """
    factors = {each.device: each for each in observation.corrections}
    known = {row.device for row in hardware.compute} | {row.device for row in hardware.layers}
    if not known & factors.keys():
        raise ConfigurationError(
            f"nothing to correct in {hardware.name}",
            why=f"it has rates of {', '.join(sorted(known)) or 'no device'}, the run used "
            f"{', '.join(sorted(factors)) or 'devices that are not known without its plan'}",
            fix="give the hardware.json that was fitted for this cluster, and the plan of the run",
        )
    return hardware.model_copy(
        update={
            "compute": tuple(_rates(row, factors.get(row.device)) for row in hardware.compute),
            "layers": tuple(_times(row, factors.get(row.device)) for row in hardware.layers),
            "notes": (
                *hardware.notes,
                *(
                    f"{each.device}: compute times x {each.factor:.3f}, measured on {each.rows} "
                    "rows of a run's log"
                    for each in observation.corrections
                    if each.device in known
                ),
            ),
        }
    )


def _rates(row: ComputeRates, correction: Correction | None) -> ComputeRates:
    if correction is None:
        return row
    factor = correction.factor
    return row.model_copy(
        update={
            "flop_per_s": row.flop_per_s / factor,
            "left_s": row.left_s * factor,
            "right_s": row.right_s * factor,
            "output_s": row.output_s * factor,
            "launch_s": row.launch_s * factor,
            "origin": Origin.MEASURED,
            "versus_shipped": row.versus_shipped and row.versus_shipped * factor,
        }
    )


def _times(row: LayerTimes, correction: Correction | None) -> LayerTimes:
    if correction is None:
        return row
    return row.model_copy(
        update={
            "forward_s": row.forward_s * correction.factor,
            "backward_s": row.backward_s * correction.factor,
        }
    )
