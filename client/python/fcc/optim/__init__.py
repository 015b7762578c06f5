# SPDX-License-Identifier: MIT
"""Optimizers that take gradients before they are reduced: drop-ins for torch.optim's, with one operator for a step.

    model = torch.nn.Linear(64, 64)                    # the same parameters on all ranks
    optimizer = fcc.optim.Adam(model.parameters(), lr=1e-3)
    loss(model(x)).backward()                          # gradients of this rank's samples
    optimizer.step()                                   # their mean over the ranks, Adam, and all ranks have the new parameters

A step is a program (client/PROGRAMS.md) in one pass: the owner of a slice of the parameters adds up all ranks' gradients, updates its slice of the
state, and stores the parameters at all ranks. So the state is sharded: each rank has 1/size of it.

What holds for all of them:
    parameters   float32, float16, bfloat16, on the communicator's device, dense, the same on all ranks. With the first step they are moved into the daemon's memory, of which
                 they become views. Those of 16 bits have a master copy in float32 in the state, sharded too; it is made anew of a parameter that was
                 changed in place, and its state stays. One that is given other memory (p.data = ...) is moved again
    gradients    those of this rank alone; copied into the daemon's memory with each step, if they are not views of it: after
                 zero_grad(set_to_none=False) they are, if grads_in_place=True. A parameter whose gradient is None on all ranks is skipped; where it
                 is None on some, it counts as 0 there
    DDP          fcc.optim.use_with(ddp_model): its gradients stay unreduced
    state_dict   torch.optim's: it loads there, and torch.optim's loads here (of LAMB, which torch has not, Adam's). It is collective: all ranks call it
    GPUs         a step sees what the current stream was given before, and returns when the parameters are updated; it is not captured into a CUDA graph, except with
    capturable   True, on CUDA GPUs of one node with one rank on each: a step is put onto the current stream, and nobody waits. The ranks agree, and wait, in the first
                 step, and in one of which all ranks know that it is another one than before: other parameters have gradients or were given other memory, a state_dict
                 was loaded, param_groups have changed, a GradScaler is in use. In between nobody checks that all ranks have the same numbers, except with $FCC_BOUND=1: then a rank that
                 differs, or whose step has raised an error, is heard of by all, in a later call, and none has made that step.
                 In a CUDA graph (torch.cuda.graph()), behind such a step outside of it, step() puts only its work there, and counts nothing. advance(), on the same
                 stream before each replay(), counts a step, and gives the replay its numbers: lr and the others of param_groups as they are then, and those of step t
    GradScaler   each rank's own: gradients are divided by its scale before they are added up. An infinity of one rank makes all of them skip the step, but scaler.update() lowers the
                 scale on that rank alone, as torch does not let an optimizer tell the scaler. Results are right with different scales; who wants them alike gives update() the least one
    errors       ArgumentError on all ranks; the step changes nothing then
"""
from ._adam import Adam, AdamW
from ._lamb import LAMB
from ._sgd import SGD
from ._sharded import ShardedOptimizer, use_with

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "ShardedOptimizer", "use_with"]
