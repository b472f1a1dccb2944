package rendezvous

import (
	"strconv"
	"strings"
)

// Slurm reserves step IDs from firstReservedStep for processes that are not ranks, such as sbatch
// scripts, in which SLURM_PROCID is 0.
const firstReservedStep = 0xfffffff0

func isInSlurmStep(e *environment) bool {
	id, err := strconv.ParseUint(e.value("SLURM_STEP_ID"), 10, 64)
	return err == nil && id < firstReservedStep
}

// worldFromSlurm prefers the size of the step to the size of the job, because a job can run many
// steps.
func worldFromSlurm(e *environment) (World, error) {
	e.variables = nil
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

// tasksOnNode returns the number of tasks on a node. In list, "4(x2),3" means 4 tasks on nodes 0
// and 1, and 3 on node 2.
func tasksOnNode(list string, node int) (tasks int, isValid bool) {
	for item := range strings.SplitSeq(list, ",") {
		number, times, isRepeated := strings.Cut(item, "(x")
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return 0, false
		}
		count := 1 // number of nodes with n tasks
		if isRepeated {
			digits, isClosed := strings.CutSuffix(times, ")")
			if count, err = strconv.Atoi(digits); err != nil || !isClosed || count < 1 {
				return 0, false
			}
		}
		if node < count {
			return n, true
		}
		node -= count
	}
	return 0, false
}
