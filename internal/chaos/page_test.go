package chaos

import (
	"encoding/json"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem"
)

var allCellsFlag = flag.Bool("all-cells", false,
	"test each fault on GPUs at every check level instead of one")

// pageTask is a job that tests docs/reference/failures.md, the page. The page promises which errors
// the other ranks get if one rank, the victim, is killed or has another fault. The ranks print
// reports on several cells: collectives that use one path (algorithm) and are called directly or
// replayed in a graph.
type pageTask struct {
	World string // key of pageWorlds
	Level string // one of pageLevels
	Fault string // key of pageFaults
}

const (
	pageRanks  = 3
	pageVictim = 2           // rank with the fault
	pageLimit  = time.Minute // time limit of a job
)

// pageLevels lists the check levels, from no comparison of calls to a comparison of every call.
var pageLevels = []string{"off", "registration", "every"}

// pageWorld describes a backend and the behavior that the page promises for it.
type pageWorld struct {
	backend      string
	machines     int // number of simulated machines, or 0 for the real one
	paths        []symmem.PathChoice
	shortTimeout time.Duration // for faults that cause a timeout
	// areErrorsPropagated is set if a stream that waits for the failed call reports the same error
	// and skips later work. Otherwise, only the stream and the group of the call report the error.
	areErrorsPropagated bool
	followingWorkEnds   bool // work after the failed call does not hang
	unpromisedCallsEnd  bool // calls do not hang in cells without a promise
}

// pageWorlds holds the worlds by name. On GPUs, the window path has a separate world, because
// NCCL's window kernels continue after an abort and may block kernels of other paths.
var pageWorlds = map[string]*pageWorld{
	"host": {
		backend: "host", shortTimeout: 1200 * time.Millisecond,
		areErrorsPropagated: true, followingWorkEnds: true, unpromisedCallsEnd: true,
		paths: []symmem.PathChoice{symmem.PathPlain, symmem.PathWindow},
	},
	"gpu": {
		backend: "nccl", shortTimeout: 1500 * time.Millisecond, followingWorkEnds: true,
		paths: []symmem.PathChoice{symmem.PathPlain, symmem.PathDirect},
	},
	"gpu machines": {
		backend: "nccl", machines: 2, shortTimeout: 1500 * time.Millisecond, followingWorkEnds: true,
		paths: []symmem.PathChoice{symmem.PathPlain},
	},
	"gpu window": {
		backend: "nccl", shortTimeout: 1500 * time.Millisecond,
		paths: []symmem.PathChoice{symmem.PathWindow},
	},
}

func TestPage(t *testing.T) {
	t.Parallel()
	var noVariables []string
	for _, level := range pageLevels {
		for name := range pageFaults {
			t.Run(level+"/"+name, func(t *testing.T) {
				t.Parallel()
				pageTask{World: "host", Level: level, Fault: name}.run(t, noVariables)
			})
		}
	}
}

func TestPageOnAGPU(t *testing.T) {
	t.Parallel()
	env := gpuVariables(t, "SOFTGPU_DEAF=1") // window kernels ignore aborts, as in NCCL
	for _, world := range []string{"gpu", "gpu machines", "gpu window"} {
		for _, level := range pageLevels {
			for name, f := range pageFaults {
				task := pageTask{World: world, Level: level, Fault: name}
				isSelected := *allCellsFlag || level == f.level
				hasCells := len(task.cells()) > 0
				if isSelected && hasCells {
					t.Run(level+"/"+name+"/"+world, func(t *testing.T) {
						t.Parallel()
						task.run(t, env)
					})
				}
			}
		}
	}
}

// cells returns the cells that the task can test without hanging.
func (p pageTask) cells() (cells []*cell) {
	w := pageWorlds[p.World]
	f := pageFaults[p.Fault]
	for _, path := range w.paths {
		isPromised := f.isPromised == nil || f.isPromised(p.Level, path)
		doesCallEnd := isPromised || w.unpromisedCallsEnd
		if doesCallEnd {
			for _, isReplayed := range []bool{false, true} {
				cells = append(cells, newCell(path, isReplayed, isPromised))
			}
		}
	}

	return cells
}

// run runs the task and checks the reports. env holds additional environment variables.
func (p pageTask) run(t *testing.T, env []string) {
	t.Helper()
	var reports []pageReport
	j := job{
		role: "page", ranks: pageRanks, task: p, timeLimit: pageLimit, variables: env,
		machines: pageWorlds[p.World].machines,
		onLine: func(line string) {
			var r pageReport
			isReport := json.Unmarshal([]byte(line), &r) == nil // unlike other output of the rank
			if isReport {
				reports = append(reports, r)
			}
		},
	}
	if _, err := j.run(t.Context()); err != nil {
		t.Error(err)
	}

	for _, r := range reports {
		if len(r.Bad) > 0 {
			t.Errorf("%s, rank %d: %s", r.Cell, r.Rank, strings.Join(r.Bad, "; "))
		}
	}

	p.checkReporters(t, reports)
}

// checkReporters checks that each rank that is not killed has reported on each cell.
func (p pageTask) checkReporters(t *testing.T, reports []pageReport) {
	t.Helper()
	reporters := map[string][]int{} // ranks by the name of the cell
	for _, r := range reports {
		reporters[r.Cell] = append(reporters[r.Cell], r.Rank)
	}

	var wantReporters []int
	for rank := range pageRanks {
		isKilled := p.Fault == "killed" && rank == pageVictim
		if !isKilled {
			wantReporters = append(wantReporters, rank)
		}
	}

	for _, c := range p.cells() {
		got := reporters[c.name]
		slices.Sort(got)
		if !slices.Equal(got, wantReporters) {
			t.Errorf("%s: got reports of ranks %v, want %v", c.name, got, wantReporters)
		}
	}
}
