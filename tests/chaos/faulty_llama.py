"""The code of a checkpoint that does, on order, what broken models, kernels and machines do: it
lies beside the weights, and `--trust-remote-code` lets an engine run it.

A fault strikes whenever a certain token is computed (`faults` of config.json, by token id), or
once, in the forward of a certain number since the process began: then a file `NUMBER-FAULT` lies in
the folder `fault_plan`, and is taken away before the fault strikes.
"""

import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast


class FaultyForCausalLM(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """A Llama with faults."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self._by_token = {int(token): fault for token, fault in config.faults.items()}
        self._plan = Path(config.fault_plan)
        self._num_forwards = 0
        self.own = nn.Identity()  # a part that no other Llama has: nothing stands in for `forward`

    def forward(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int | Tensor = 0,
    ) -> CausalLMOutputWithPast:
        self._num_forwards += 1
        self._strike_as_planned()
        states: Tensor = self.get_input_embeddings()(input_ids)
        for token, fault in self._by_token.items():
            places = input_ids == token
            if bool(places.any()):
                if fault == "nan":
                    states = states.masked_fill(places[..., None], torch.nan)
                else:
                    strike(fault)
        output: CausalLMOutputWithPast = super().forward(
            inputs_embeds=states,
            position_ids=position_ids,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )
        return output

    def _strike_as_planned(self) -> None:
        for path in sorted(self._plan.iterdir()):
            number, _, fault = path.name.partition("-")
            if int(number) <= self._num_forwards:
                path.unlink()
                strike(fault)


def strike(fault: str) -> None:
    """Do what the fault says. Raises what it says, if that is an error."""
    if fault == "abort":
        os.abort()
    if fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        while True:
            time.sleep(1)
    if fault == "raise":
        raise RuntimeError("a kernel failed, as planned")
    if fault == "memory":
        raise MemoryError("an allocation failed, as planned")
    raise ValueError(f"there is no fault {fault!r}")
