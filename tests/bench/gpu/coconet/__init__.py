# SPDX-License-Identifier: MIT
"""compare_gpu --rows coconet: programs of client/programs beside NCCL and what torch.compile makes of the same, in mixed precision as models are trained: gradients and
parameters in bf16, and of the optimisers a master copy of the parameters and the averages in f32. Both sides are CUDA graphs of one step, timed from event to event,
all ranks having met before, and the slowest rank counts. fccd's programs are run by build/tests/program_fcc, bound, which compares what they make with double
precision; one that cannot be bound is launched by fccd, and timed from call to return, which is said. fcc.optim's steps are captured by torch.cuda.graph().

  rows.py       which rows there are, and what goals they have
  sequences.py  what the ranks do with NCCL and torch.compile
  model.py      the same of a model's list of tensors, and fcc.optim
  course.py     runs the rows, one after the other, each part under a limit of its own
  told.py       what is printed of them, and their JSON
"""
