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

// The files page*_test.go test the tables of docs/reference/failures.md, the page. A cell states
// which errors a fault of one rank causes on the other ranks. It applies to one check level, to
// one path (algorithm), and to collectives that are called directly (eager) or replayed in a
// graph. Each fault is tested in all worlds, on the host and on GPUs.

var allCellsFlag = flag.Bool("all-cells", false,
	"test each fault on GPUs at every check level instead of one")

// pageTask selects the cells that one job tests: those of a world, a check level and a fault.
type pageTask struct {
	World string // key of pageWorlds
	Level string // one of pageLevels
	Fault string // key of pageFaults
}

const (
	pageRanks  = 3           // number of ranks
	pageVictim = 2           // rank with the fault
	pageLimit  = time.Minute // time after which a job is considered to hang
)

// pageLevels lists the check levels, which determine how much ranks compare their calls.
var pageLevels = []string{"off", "registration", "every"}

// pageWorld describes a backend and its promised outcomes.
type pageWorld struct {
	backend string
	// machines is the number of pretended machines, or 0 for the real one.
	machines int
	paths    []symmem.PathChoice
	// shortTimeout is the timeout of a world with a fault that must cause a timeout.
	shortTimeout time.Duration
	// areErrorsPropagated is set if an error spreads to streams that wait for the failed call. Their
	// later work is then skipped. Otherwise, only the group and the stream of the call report it.
	areErrorsPropagated bool
	// followingWorkEnds is set if work that is queued after the failed call ends, whether it is
	// skipped or executed.
	followingWorkEnds bool
	// unpromisedCallsEnd is set if calls end even in cells for which the page promises nothing.
	// Other worlds do not test these cells.
	unpromisedCallsEnd bool
}

// pageWorlds holds the worlds by name. On GPUs, the window path has a separate world, because
// NCCL's window kernels keep running after an abort until the process exits, and may block other
// kernels.
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

// TestPage tests all cells on the host: each fault at each check level.
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

// TestPageOnAGPU tests cells on the GPUs of this machine if SYMMEM_TEST_BACKEND is nccl.
// Otherwise, it uses the software GPU, whose window kernels ignore aborts like those of NCCL.
func TestPageOnAGPU(t *testing.T) {
	t.Parallel()
	env := gpuVariables(t, "SOFTGPU_DEAF=1") // makes window kernels ignore aborts
	for _, world := range []string{"gpu", "gpu machines", "gpu window"} {
		for _, level := range pageLevels {
			for name, f := range pageFaults {
				task := pageTask{World: world, Level: level, Fault: name}
				isSelected := *allCellsFlag || level == f.level
				hasCells := len(task.cells()) > 0
				if !isSelected || !hasCells {
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

// cells returns the cells to test, on all paths of the world, eager and replayed.
func (p pageTask) cells() (cells []*cell) {
	w, f := pageWorlds[p.World], pageFaults[p.Fault]
	for _, path := range w.paths {
		isPromised := f.isPromised == nil || f.isPromised(p.Level, path)
		mayHang := !isPromised && !w.unpromisedCallsEnd
		if mayHang {
			continue
		}

		for _, isReplayed := range []bool{false, true} {
			cells = append(cells, newCell(path, isReplayed, isPromised))
		}
	}

	return cells
}

// run starts the ranks with additional environment variables, as NAME=value. It fails the test
// unless every rank reports on every cell without an error. A killed rank reports nothing.
func (p pageTask) run(t *testing.T, env []string) {
	t.Helper()
	cells := p.cells()
	var reports []pageReport
	j := job{
		role: "page", ranks: pageRanks, task: p, timeLimit: pageLimit, variables: env,
		machines: pageWorlds[p.World].machines,
		onLine: func(line string) {
			var r pageReport
			if json.Unmarshal([]byte(line), &r) == nil { // ignore other output
				reports = append(reports, r)
			}
		},
	}
	if _, err := j.run(t.Context()); err != nil {
		t.Error(err)
	}

	reporters := map[string][]int{} // ranks that have reported on a cell, by its name
	for _, r := range reports {
		reporters[r.Cell] = append(reporters[r.Cell], r.Rank)
		if len(r.Bad) > 0 {
			t.Errorf("%s, rank %d: %s", r.Cell, r.Rank, strings.Join(r.Bad, "; "))
		}
	}

	var wantReporters []int
	for rank := range pageRanks {
		if p.Fault == "killed" && rank == pageVictim {
			continue
		}

		wantReporters = append(wantReporters, rank)
	}

	for _, c := range cells {
		got := reporters[c.name]
		slices.Sort(got)
		if !slices.Equal(got, wantReporters) {
			t.Errorf("%s: got reports of ranks %v, want %v", c.name, got, wantReporters)
		}
	}
}
