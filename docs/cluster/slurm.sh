#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
# sbatch slurm.sh +space=llama70b_h100: the folder it is called in is on a file system all nodes share
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RAY_ADDRESS="$head:6379" RAY_AUTH_MODE=token RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(openssl rand -hex 32)}

srun --overlap --nodes=1 --ntasks=1 -w "$head" \
  ray start --head --port=6379 --num-cpus="$SLURM_CPUS_PER_TASK" --include-dashboard=false --block &
sleep 15
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --overlap --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
    ray start --address="$RAY_ADDRESS" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi
python -m sweeper "$@" site=slurm plot=false
