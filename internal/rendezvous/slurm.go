package rendezvous

import (
	"strconv"
	"strings"
)

// firstReservedStep is the lowest step ID that Slurm reserves for processes that are not ranks,
// such as sbatch scripts, in which SLURM_PROCID is 0.
const firstReservedStep = 0xfffffff0

// isInSlurmStep reports whether this process is a rank that srun has started.
func isInSlurmStep(e *environment) bool {
	id, err := strconv.ParseUint(e.value("SLURM_STEP_ID"), 10, 64)
	return err == nil && id < firstReservedStep
}

// worldFromSlurm returns the World that the variables of a Slurm step describe. It prefers the
// size of the step to the size of the job, because a job can run many steps.
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
	var errs [4]error
	w.Rank, errs[0] = e.number("SLURM_PROCID")
	w.LocalRank, errs[1] = e.number("SLURM_LOCALID")
	w.Size, errs[2] = e.number(sizeName)
	w.LocalSize, errs[3] = slurmLocalSize(e, w.Size)
	for _, err := range errs {
		if err != nil {
			return World{}, err
		}
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

// tasksOnNode returns the number of tasks on a node, as the value of SLURM_STEP_TASKS_PER_NODE
// lists it. For example, "4(x2),3" means 4 tasks on each of nodes 0 and 1, and 3 on node 2.
func tasksOnNode(list string, node int) (tasks int, isValid bool) {
	for item := range strings.SplitSeq(list, ",") {
		number, repetition, isRepeated := strings.Cut(item, "(x")
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return 0, false
		}
		nodeCount := 1 // number of nodes with n tasks
		if isRepeated {
			digits, isClosed := strings.CutSuffix(repetition, ")")
			nodeCount, err = strconv.Atoi(digits)
			if err != nil || !isClosed || nodeCount < 1 {
				return 0, false
			}
		}
		if node < nodeCount {
			return n, true
		}
		node -= nodeCount // relative to the next item
	}
	return 0, false
}
