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

// The files page*_test.go prove the tables of docs/reference/failures.md, one cell by one report:
// what ranks are told when one of them is killed, late, stopped, differs, aborts or leaves, at each
// check level, on each path, eager and replayed. There is one table of faults, and worlds in which
// they happen: that of the host, and those of GPUs.

var allCellsFlag = flag.Bool("all-cells", false,
	"try each fault on GPUs at every check level, and not at one")

// pageTask is a fault and a level in a world; all paths and modes are tried at once.
type pageTask struct {
	World, Level, Fault string
}

// pageRanks is the size of the world, pageVictim the rank that the fault is about.
const (
	pageRanks  = 3
	pageVictim = 2
)

// pageLimit is how long the processes of a task may take.
const pageLimit = time.Minute

// pageLevels are the check levels.
var pageLevels = []string{"off", "registration", "every"}

// pageWorld is where ranks run, and what is promised there in every cell.
type pageWorld struct {
	backend string
	paths   []symmem.PathChoice
	// soon is the timeout of faults that run into it.
	soon time.Duration
	// flows reports whether work queued behind a failure fails, too: events and streams carry the
	// error, and work behind it is not run. Else the group and the stream of the call report it alone.
	flows bool
	// endsBehind reports whether work behind the failure comes to its end, whether it has run or not.
	endsBehind bool
	// ends reports whether a cell ends also where its outcome is not promised.
	ends bool
}

// pageWorlds are the worlds. NCCL's window kernels do not end before their process does, and then
// its others may not either, so they have a world of their own.
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

// TestPageOnAGPU does the same on the GPU backend: on the software GPU, whose window kernels do
// not end by an abort, as those of NCCL, or, where the variable SYMMEM_TEST_BACKEND is nccl, on
// those of the machine.
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

// cells are those that the ranks of a task try.
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

// prove has the fault happen, and looks at what the ranks report.
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
