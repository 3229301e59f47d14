#!/usr/bin/env bash
# One task of `srun` becomes one rank of torch.distributed: env.sh LOG_DIR COMMAND [ARGUMENT ...]
# Rank 0 writes to the job's log, rank R to LOG_DIR/rankR.log, as on one machine.
log_dir=$1
shift

export RANK=$SLURM_PROCID
export WORLD_SIZE=$SLURM_NTASKS
export LOCAL_RANK=$SLURM_LOCALID
LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_STEP_NUM_NODES)) # launch.py gives every node as many tasks
export LOCAL_WORLD_SIZE

mapfile -t nodes < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
export MASTER_ADDR=${nodes[0]}
# Every task must find the same port without asking. It follows from the job, so that jobs that share a node differ
# (ids less than 1250 apart never meet), and from the step, so that a step does not wait for the sockets of the one
# before. 12000 to 31999 lies below the ports that Linux hands out by itself (32768 and up).
export MASTER_PORT=$((12000 + (SLURM_JOB_ID * 16 + SLURM_STEP_ID % 16) % 20000))

# SLURM binds a task to its cores, but not at every site: the number is what the job asked for, not what is visible.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}

if [ "$RANK" != 0 ]; then
  exec >>"$log_dir/rank$RANK.log" 2>&1
fi
exec "$@"
