package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"symmem"
)

// graphsTask is what a rank is told: to run some programs.
type graphsTask struct {
	Seed            uint64
	First, Programs int
	// Most is the largest sum, in bytes.
	Most int64
}

// graphsWorld is how many programs one world of processes runs, and graphsLimit how long they may
// take together.
const (
	graphsWorld = 5
	graphsLimit = 5 * time.Minute
)

// Streams of a program: those of another library come first.
const (
	theirStreams = 3
	graphStreams = 5
)

// tally is memory of which each rank has its own part, and what the other ranks have there, which
// stays as it was. A call adds theirs to the rank's own, in place, so a call that was wrong, was
// left out or ran twice shows at the end.
type tally struct {
	// count is how many numbers a part has.
	count int64
	unit  int32
	// foreign reports whether it is memory of another library.
	foreign bool
}

// recordedCall adds to a tally, on a stream.
type recordedCall struct{ stream, tally int }

// capturedGraph has calls on several branches: one on each stream of those, of which the first one
// begins the capture. Or it is one of symmem's own, on one stream.
type capturedGraph struct {
	own   bool
	calls []recordedCall
}

// graphsAct launches a graph, or makes a call that is in none.
type graphsAct struct {
	graph int // or -1
	recordedCall
}

// graphsProgram is what all ranks do.
type graphsProgram struct {
	path    symmem.PathChoice
	tallies []tally
	graphs  []capturedGraph
	acts    []graphsAct
}

// ranks is how many ranks the world has in which the programs run.
func (t *graphsTask) ranks() int {
	return 2 + newDraws(t.Seed, -1-(t.First-1)/graphsWorld).IntN(3)
}

func (t *graphsTask) program(number int) *graphsProgram {
	d := newDraws(t.Seed, number)
	paths := []symmem.PathChoice{symmem.PathPlain, symmem.PathWindow, symmem.PathDirect}
	p := &graphsProgram{path: paths[min(d.IntN(5), 2)]}
	alike := d.IntN(2) == 0
	for range 1 + d.IntN(4) {
		one := tally{unit: 1 + d.Int32N(1000), foreign: d.IntN(2) == 0}
		// As many small ones as large ones.
		one.count = max(1, d.Int64N(1+(t.Most/4)>>d.IntN(14)))
		if alike && len(p.tallies) > 0 {
			one.count, one.foreign = p.tallies[0].count, p.tallies[0].foreign
		}
		p.tallies = append(p.tallies, one)
	}
	for range 2 + d.IntN(3) {
		g := capturedGraph{own: d.IntN(4) == 0}
		branches := 1 + d.IntN(theirStreams)
		for range 1 + d.IntN(6) {
			g.calls = append(g.calls, recordedCall{d.IntN(branches), d.IntN(len(p.tallies))})
		}
		p.graphs = append(p.graphs, g)
	}
	for range 10 + d.IntN(40) {
		p.acts = append(p.acts, p.act(d))
	}
	return p
}

func (p *graphsProgram) act(d *rand.Rand) graphsAct {
	if d.IntN(3) == 0 {
		return graphsAct{-1, recordedCall{d.IntN(graphStreams), d.IntN(len(p.tallies))}}
	}
	a := graphsAct{graph: d.IntN(len(p.graphs))}
	a.stream = d.IntN(theirStreams)
	if p.graphs[a.graph].own {
		a.stream = d.IntN(graphStreams)
	}
	return a
}

// calls is how often each tally was added to when the program has run.
func (p *graphsProgram) calls() []int32 {
	n := make([]int32, len(p.tallies))
	for _, a := range p.acts {
		if a.graph < 0 {
			n[a.tally]++
			continue
		}
		for _, c := range p.graphs[a.graph].calls {
			n[c.tally]++
		}
	}
	for i := range n {
		n[i]++ // before the captures
	}
	return n
}

func (p *graphsProgram) String() string {
	return fmt.Sprintf("path %v, tallies %+v\ngraphs %+v\nacts %+v", p.path, p.tallies, p.graphs,
		p.acts)
}

// TestGraphsOnAGPU replays several graphs, of another library and of symmem, on several streams,
// with other calls between, and without anything that keeps them apart. Sums have up to 64 MiB on
// the GPUs of the machine, where the variable SYMMEM_TEST_BACKEND is nccl, and less on a GPU of
// software.
func TestGraphsOnAGPU(t *testing.T) {
	most := int64(64 << 20)
	if os.Getenv("SYMMEM_TEST_BACKEND") != "nccl" {
		most = 256 << 10
		if racing {
			t.Skip(fmt.Errorf("the software GPU takes minutes under the race detector: %w",
				symmem.ErrUnsupported))
		}
	}
	env := gpuVariables(t)
	bar{programs: 20, each: graphsWorld, run: func(ctx context.Context, first, programs int) error {
		return graphs(ctx, graphsTask{
			Seed: *seedFlag, First: first, Programs: programs, Most: most,
		}, env)
	}}.meet(t)
}

func graphs(ctx context.Context, task graphsTask, env []string) error {
	var said messagesReports
	j := job{
		role: "graphs", ranks: task.ranks(), task: task, limit: graphsLimit, variables: env,
		hear: said.hear,
	}
	_, err := j.run(ctx)
	for _, r := range said.inOrder() {
		if len(r.Bad) > 0 {
			return errors.Join(fmt.Errorf("program %d on rank %d: %q\n%v", r.Program, r.Rank, r.Bad,
				task.program(r.Program)), err)
		}
	}
	if err == nil {
		err = said.complete(j.ranks)
	}
	if err != nil {
		return fmt.Errorf("programs %d to %d: %w", task.First, task.First+task.Programs-1, err)
	}
	return nil
}

// graphsRank is the main function of a rank.
func graphsRank(text []byte) error {
	var task graphsTask
	if err := json.Unmarshal(text, &task); err != nil {
		return err
	}
	p, err := openReplayer(context.Background())
	if err != nil {
		return err
	}
	report := messagesReport{Rank: p.rt.Rank(), Program: task.First}
	for ; report.Program < task.First+task.Programs; report.Program++ {
		if err := p.run(task.program(report.Program)); err != nil {
			report.Bad = append(report.Bad, err.Error())
			break
		}
	}
	if err := p.close(); err != nil && len(report.Bad) == 0 {
		report.Bad = append(report.Bad, fmt.Sprintf("closing: %v", err))
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}
