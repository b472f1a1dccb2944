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

// The files page*_test.go test the tables of docs/reference/failures.md, with a report for each
// cell: the errors of ranks when one of them is killed, late, stopped, differs, aborts or leaves,
// at each check level, on each path, eager and replayed. The faults are the same in all worlds: the
// host and GPUs.

var allCellsFlag = flag.Bool("all-cells", false,
	"test each fault on GPUs at every check level instead of one")

// pageTask selects a fault and a check level in a world. It tests all paths and modes at once.
type pageTask struct {
	World, Level, Fault string
}

// pageRanks is the size of the world, pageVictim the rank that has the fault.
const (
	pageRanks  = 3
	pageVictim = 2
)

// pageLimit bounds the time of a task.
const pageLimit = time.Minute

// pageLevels lists the check levels.
var pageLevels = []string{"off", "registration", "every"}

// pageWorld describes a backend and what the page promises for all its cells.
type pageWorld struct {
	backend string
	paths   []symmem.PathChoice
	// soon is the timeout for faults that reach it.
	soon time.Duration
	// flows means that failures flow forward: events and streams carry the error, and work behind it
	// is skipped. Otherwise only the group and the stream of the call report it.
	flows bool
	// endsBehind means that work behind the failure ends, whether it has run or not.
	endsBehind bool
	// ends means that cells without a promised outcome also end.
	ends bool
}

// pageWorlds lists the worlds. The window path has a separate one, since NCCL's aborted window
// kernels run until their process exits, and may block its other kernels.
var pageWorlds = map[string]*pageWorld{
	"host": {
		backend: "host", soon: 1200 * time.Millisecond, flows: true, endsBehind: true, ends: true,
		paths: []symmem.PathChoice{symmem.PathPlain, symmem.PathWindow},
	},
	"gpu": {
		backend: "nccl", soon: 1500 * time.Millisecond, endsBehind: true,
		paths: []symmem.PathChoice{symmem.PathPlain, symmem.PathDirect},
	},
	"gpu window": {
		backend: "nccl", soon: 1500 * time.Millisecond,
		paths: []symmem.PathChoice{symmem.PathWindow},
	},
}

func TestPage(t *testing.T) {
	t.Parallel()
	for _, level := range pageLevels {
		for name := range pageFaults {
			t.Run(level+"/"+name, func(t *testing.T) {
				t.Parallel()
				pageTask{World: "host", Level: level, Fault: name}.prove(t, nil)
			})
		}
	}
}

// TestPageOnAGPU does the same on the GPU backend: on the software GPU, whose window kernels ignore
// aborts like NCCL's, or on the GPUs of the machine if SYMMEM_TEST_BACKEND is nccl.
func TestPageOnAGPU(t *testing.T) {
	t.Parallel()
	env := gpuVariables(t, "SOFTGPU_DEAF=1")
	for _, world := range []string{"gpu", "gpu window"} {
		for _, level := range pageLevels {
			for name, f := range pageFaults {
				task := pageTask{World: world, Level: level, Fault: name}
				if len(task.cells()) == 0 || level != f.level && !*allCellsFlag {
					continue
				}
				t.Run(level+"/"+name+"/"+world, func(t *testing.T) {
					t.Parallel()
					task.prove(t, env)
				})
			}
		}
	}
}

// cells returns the cells that the ranks of a task test.
func (p pageTask) cells() (cells []*cell) {
	w, f := pageWorlds[p.World], pageFaults[p.Fault]
	for _, path := range w.paths {
		promised := f.promised == nil || f.promised(p.Level, path)
		if !promised && !w.ends {
			continue
		}
		for _, replayed := range []bool{false, true} {
			cells = append(cells, newCell(path, replayed, promised))
		}
	}
	return cells
}

// prove runs a task and checks the reports of its ranks.
func (p pageTask) prove(t *testing.T, env []string) {
	t.Helper()
	cells := p.cells()
	var reports []pageReport
	j := job{
		role: "page", ranks: pageRanks, task: p, limit: pageLimit, variables: env,
		hear: func(line string) {
			var r pageReport
			if json.Unmarshal([]byte(line), &r) == nil {
				reports = append(reports, r)
			}
		},
	}
	if _, err := j.run(t.Context()); err != nil {
		t.Error(err)
	}
	said := map[string][]int{}
	for _, r := range reports {
		said[r.Cell] = append(said[r.Cell], r.Rank)
		if len(r.Bad) > 0 {
			t.Errorf("%s, rank %d: %s", r.Cell, r.Rank, strings.Join(r.Bad, "; "))
		}
	}
	ranks := []int{0, 1, 2}
	if p.Fault == "killed" {
		ranks = ranks[:pageVictim]
	}
	for _, c := range cells {
		if slices.Sort(said[c.name]); !slices.Equal(said[c.name], ranks) {
			t.Errorf("%s has reports of ranks %v, want %v", c.name, said[c.name], ranks)
		}
	}
}
