"""A training by shards that prints its world size at each start: elastic_program.py RUN_DIR STEPS_A_SECOND"""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist

import samebits
import shard_programs as programs


def main(run_dir, pause):
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    samebits.set_random_seed(1)
    program = programs.Convnet()
    with samebits.Run(run_dir, save=1, **program.objects()) as run:
        print(f"START of {run.world_size}", flush=True)
        for step, own in run.steps(programs.loader(), epochs=15, shards=programs.SHARDS):
            for batch in own:
                program.backward(0, *batch, 1 / step.shards)
            program.update(0)
            if run.rank == 0:
                print(f"step {step.number}", flush=True)
            time.sleep(pause)
    weights = b"".join(value.contiguous().numpy().tobytes() for value in program.net.state_dict().values())
    print("END", hashlib.sha256(weights).hexdigest()[:16], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
    if dist.is_initialized():
        dist.destroy_process_group()
