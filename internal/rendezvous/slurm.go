package rendezvous

import (
	"cmp"
	"strconv"
	"strings"
)

// Slurm calls ranks tasks and machines nodes. Each call of srun in a job's script is a step. Rank 4
// of a step with 7 ranks on 3 machines gets variables such as these:
//
//	SLURM_JOB_ID=42, SLURM_STEP_ID=1
//	SLURM_PROCID=4                      rank
//	SLURM_STEP_NUM_TASKS=7              number of ranks
//	SLURM_LOCALID=0                     local rank
//	SLURM_NODEID=1                      machine
//	SLURM_STEP_NUM_NODES=3              number of machines
//	SLURM_STEP_TASKS_PER_NODE=4,2,1     number of ranks on each machine

// Step IDs from firstReservedStep belong to processes that are not ranks, such as the job's script.
// Slurm also sets SLURM_PROCID for them.
const firstReservedStep = 0xfffffff0

// isInSlurmStep reports whether this process is a rank that srun has started.
func isInSlurmStep(lookup func(string) (string, bool)) bool {
	stepID, _ := lookup("SLURM_STEP_ID")
	id, err := strconv.ParseUint(stepID, 10, 64)
	return err == nil && id < firstReservedStep
}

// worldFromSlurm returns the World that the variables of a step describe.
func worldFromSlurm(e *environment) (World, error) {
	job := e.value("SLURM_JOB_ID")
	if job == "" {
		return World{}, e.errorf("SLURM_STEP_ID is set, but SLURM_JOB_ID is not")
	}

	w := World{Source: SourceSlurm, RunID: job + "." + e.value("SLURM_STEP_ID")}
	sizeName := "SLURM_STEP_NUM_TASKS"
	if e.value(sizeName) == "" {
		sizeName = "SLURM_NTASKS"
	}

	var rankErr, localRankErr, sizeErr, localSizeErr error
	w.Rank, rankErr = e.number("SLURM_PROCID")
	w.LocalRank, localRankErr = e.number("SLURM_LOCALID")
	w.Size, sizeErr = e.number(sizeName)
	w.LocalSize, localSizeErr = slurmLocalSize(e, w.Size)
	err := cmp.Or(rankErr, localRankErr, sizeErr, localSizeErr) // the first error
	if err != nil {
		return World{}, err
	}

	if problem := w.describeProblem(); problem != "" {
		return World{}, e.errorf("%s", problem)
	}

	return w, nil
}

// slurmLocalSize returns the number of ranks on this machine, out of size ranks.
func slurmLocalSize(e *environment, size int) (int, error) {
	if e.value("SLURM_STEP_NUM_NODES") == "1" {
		return size, nil
	}

	node, err := e.number("SLURM_NODEID")
	if err != nil {
		return 0, err
	}

	n, isValid := tasksOnNode(e.value("SLURM_STEP_TASKS_PER_NODE"), node)
	if !isValid {
		return 0, e.errorf("SLURM_STEP_TASKS_PER_NODE does not contain the tasks of node %d", node)
	}

	return n, nil
}

// tasksOnNode returns the number of tasks on a node. list is SLURM_STEP_TASKS_PER_NODE. For
// example, "4(x2),3" means 4, 4 and 3 tasks.
func tasksOnNode(list string, node int) (tasks int, isValid bool) {
	for item := range strings.SplitSeq(list, ",") {
		itemTasks, nodeCount, isItemValid := parseTaskItem(item)
		if !isItemValid {
			return 0, false
		}

		if node < nodeCount {
			return itemTasks, true
		}

		node -= nodeCount // relative to the next item
	}

	return 0, false
}

// parseTaskItem parses an item such as "4(x2)": 4 tasks on each of 2 nodes.
func parseTaskItem(item string) (tasks, nodeCount int, isValid bool) {
	number, repetition, isRepeated := strings.Cut(item, "(x")
	tasks, err := strconv.Atoi(number)
	if err != nil || tasks < 0 {
		return 0, 0, false
	}

	if !isRepeated {
		return tasks, 1, true
	}

	digits, hasEnd := strings.CutSuffix(repetition, ")")
	nodeCount, err = strconv.Atoi(digits)
	isValid = err == nil && hasEnd && nodeCount >= 1
	return tasks, nodeCount, isValid
}
