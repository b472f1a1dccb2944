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

// The files page*_test.go test the tables of docs/reference/failures.md. A cell states which errors
// a fault of one rank causes on the other ranks, at one check level and on one path (algorithm),
// where the collective is called directly (eager) or replayed in a graph. Each fault is tested in
// all worlds, on the host and on GPUs.

var allCellsFlag = flag.Bool("all-cells", false,
	"test each fault on GPUs at every check level instead of one")

// pageTask selects a world, a check level and a fault, but all paths, eager and replayed.
type pageTask struct {
	World, Level, Fault string
}

const (
	pageRanks = 3
	// pageVictim has the fault.
	pageVictim = 2
)

const pageLimit = time.Minute

var pageLevels = []string{"off", "registration", "every"}

// pageWorld describes a backend and its promised outcomes.
type pageWorld struct {
	backend string
	// machines is the number of pretended machines, or 0.
	machines int
	paths    []symmem.PathChoice
	// shortTimeout is for faults that must cause a timeout.
	shortTimeout time.Duration
	// areErrorsPropagated is set if an error spreads to streams that wait for the failed call,
	// whose later work is skipped. Otherwise, only the call's group and stream report it.
	areErrorsPropagated bool
	// followingWorkEnds is set if work queued after the failed call ends, skipped or executed.
	followingWorkEnds bool
	// unpromisedCallsEnd is set if calls end even in cells without a promise.
	unpromisedCallsEnd bool
}

// On GPUs, the window path has a separate world, because NCCL's window kernels keep running after
// an abort until the process exits, and may block other kernels.
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
	for _, level := range pageLevels {
		for name := range pageFaults {
			t.Run(level+"/"+name, func(t *testing.T) {
				t.Parallel()
				pageTask{World: "host", Level: level, Fault: name}.run(t, nil)
			})
		}
	}
}

// TestPageOnAGPU uses the machine's GPUs if SYMMEM_TEST_BACKEND is nccl, or else the software GPU,
// whose window kernels ignore aborts like those of NCCL.
func TestPageOnAGPU(t *testing.T) {
	t.Parallel()
	env := gpuVariables(t, "SOFTGPU_DEAF=1")
	for _, world := range []string{"gpu", "gpu machines", "gpu window"} {
		for _, level := range pageLevels {
			for name, f := range pageFaults {
				task := pageTask{World: world, Level: level, Fault: name}
				if len(task.cells()) == 0 || level != f.level && !*allCellsFlag {
					continue
				}
				t.Run(level+"/"+name+"/"+world, func(t *testing.T) {
					t.Parallel()
					task.run(t, env)
				})
			}
		}
	}
}

func (p pageTask) cells() (cells []*cell) {
	w, f := pageWorlds[p.World], pageFaults[p.Fault]
	for _, path := range w.paths {
		promised := f.isPromised == nil || f.isPromised(p.Level, path)
		if !promised && !w.unpromisedCallsEnd {
			continue
		}
		for _, replayed := range []bool{false, true} {
			cells = append(cells, newCell(path, replayed, promised))
		}
	}
	return cells
}

func (p pageTask) run(t *testing.T, env []string) {
	t.Helper()
	cells := p.cells()
	var reports []pageReport
	j := job{
		role: "page", ranks: pageRanks, task: p, timeLimit: pageLimit, variables: env,
		machines: pageWorlds[p.World].machines,
		onLine: func(line string) {
			var r pageReport
			if json.Unmarshal([]byte(line), &r) == nil {
				reports = append(reports, r)
			}
		},
	}
	if _, err := j.run(t.Context()); err != nil {
		t.Error(err)
	}
	reporters := map[string][]int{}
	for _, r := range reports {
		reporters[r.Cell] = append(reporters[r.Cell], r.Rank)
		if len(r.Bad) > 0 {
			t.Errorf("%s, rank %d: %s", r.Cell, r.Rank, strings.Join(r.Bad, "; "))
		}
	}
	ranks := []int{0, 1, 2}
	if p.Fault == "killed" {
		ranks = ranks[:pageVictim]
	}
	for _, c := range cells {
		if slices.Sort(reporters[c.name]); !slices.Equal(reporters[c.name], ranks) {
			t.Errorf("%s: got reports of ranks %v, want %v", c.name, reporters[c.name], ranks)
		}
	}
}
