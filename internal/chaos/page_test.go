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

// The tables in docs/reference/failures.md, the page, promise which errors the other ranks get if
// one rank, the victim, has a fault. For example, if rank 2 is killed during a collective, ranks 0
// and 1 get a RankLostError. A cell of a table applies to one path (algorithm), and to collectives
// that are called directly (eager) or replayed in a graph.
//
// The test of one cell needs more choices: the fault, such as "killed"; the check level, such as
// "every"; and the world, which is a backend with some options. A task combines three choices. It
// starts a job of three ranks, which test all cells for them and print reports.

var allCellsFlag = flag.Bool("all-cells", false,
	"test each fault on GPUs at every check level instead of one")

// pageTask selects the cells that one job tests.
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
	// areErrorsPropagated is set if streams that wait for the failed call report its error, too. They
	// skip their later work. Otherwise, only the group and the stream of the call report the error.
	areErrorsPropagated bool
	// followingWorkEnds is set if work that is queued after the failed call ends. It may be skipped
	// or executed.
	followingWorkEnds bool
	// unpromisedCallsEnd is set if calls end even in cells for which the page promises nothing. These
	// cells are tested only in such a world.
	unpromisedCallsEnd bool
}

// pageWorlds holds the worlds by name. On GPUs, the window path has a separate world. After an
// abort, NCCL's window kernels run until the process exits, and may block the kernels of other
// paths.
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
	w := pageWorlds[p.World]
	f := pageFaults[p.Fault]
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

// run starts the ranks and collects their reports. It fails the test unless every rank reports on
// every cell without an error. A killed rank reports nothing. env holds additional environment
// variables, as NAME=value.
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
