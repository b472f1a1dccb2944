package rendezvous

import (
	"cmp"
	"strconv"
	"strings"
)

// firstReservedStep is the lowest of the step IDs that Slurm reserves for processes that are not
// ranks. An sbatch script, for example, also has SLURM_PROCID, but its step ID is reserved.
const firstReservedStep = 0xfffffff0

// isInSlurmStep reports whether this process is a rank that srun has started. A step is the set of
// ranks that one srun starts. Slurm calls ranks tasks, and machines nodes.
func isInSlurmStep(e *environment) bool {
	id, err := strconv.ParseUint(e.value("SLURM_STEP_ID"), 10, 64)
	return err == nil && id < firstReservedStep
}

// worldFromSlurm returns the World that the variables of a Slurm step describe: the rank of this
// process and the number of ranks. It prefers the size of the step to the size of the job, because
// a job can run many steps.
func worldFromSlurm(e *environment) (World, error) {
	e.variables = nil // Errors list only the variables that are read from here on.
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

// slurmLocalSize returns the number of ranks on this machine. size is the number of all ranks.
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

// tasksOnNode returns the number of tasks on the node with the given index. list is the value of
// SLURM_STEP_TASKS_PER_NODE. For example, "4(x2),3" means 4 tasks on each of nodes 0 and 1, and 3
// on node 2.
func tasksOnNode(list string, node int) (tasks int, isValid bool) {
	nodesBefore := 0 // number of nodes in earlier items
	for item := range strings.SplitSeq(list, ",") {
		number, repetition, isRepeated := strings.Cut(item, "(x")
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return 0, false
		}

		nodeCount := 1 // number of nodes with n tasks
		if isRepeated {
			digits, hasEnd := strings.CutSuffix(repetition, ")")
			nodeCount, err = strconv.Atoi(digits)
			if err != nil || !hasEnd || nodeCount < 1 {
				return 0, false
			}
		}

		if node-nodesBefore < nodeCount {
			return n, true
		}

		nodesBefore += nodeCount
	}

	return 0, false
}
