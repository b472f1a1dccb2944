package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem"
	"symmem/driver"
)

// This file proves the table of docs/design/failures.md, one cell by one subtest: what ranks are
// told when one of them is killed, late, stopped, differs, aborts or leaves, at each check level,
// on each path, eager and replayed.

// pageTask is a cell's fault and level; all paths and modes of them are tried at once.
type pageTask struct {
	Level, Fault string
}

// pageRanks is the size of the world, pageVictim the rank that the fault is about.
const (
	pageRanks  = 3
	pageVictim = 2
)

// fault is something that happens to the victim while the others are in a collective.
type fault struct {
	// timeout is Options.Timeout.
	timeout time.Duration
	// levels at which the outcome is promised; nil means all.
	levels []string
	// right reports that the results must be right, and nobody gets an error.
	right bool
	// happen is what the victim does instead of its call, or before it. It returns whether the
	// victim makes the call then.
	happen func(r *pageRank, c *cell) (call bool, err error)
	// others does what the fault needs of the other ranks once all cells are queued.
	others func(r *pageRank) error
	// verdict is what is wrong about the error that another rank was given.
	verdict func(err error) string
}

const (
	// pageSoon is the timeout of faults that run into it.
	pageSoon = 1200 * time.Millisecond
	// pageLong is the timeout of all others.
	pageLong = time.Minute
	// pageNamed is how soon a rank whose process has ended is named.
	pageNamed = 3 * time.Second
)

var pageFaults = map[string]fault{
	"killed": {
		timeout: pageLong,
		happen: func(*pageRank, *cell) (bool, error) {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		},
		verdict: func(err error) string {
			var lost *symmem.RankLostError
			if !errors.As(err, &lost) || !slices.Equal(lost.Ranks, []int{pageVictim}) {
				return "no RankLostError that names the rank"
			}
			return ""
		},
	},
	"late": {
		timeout: pageLong, right: true,
		happen: func(*pageRank, *cell) (bool, error) {
			<-time.After(pageSoon / 4)
			return true, nil
		},
	},
	"later than the timeout": {
		timeout: pageSoon,
		happen: func(*pageRank, *cell) (bool, error) {
			<-time.After(2 * pageSoon)
			return true, nil
		},
		verdict: lateVerdict,
	},
	"stopped": {
		timeout: pageLong, right: true,
		happen: beStopped,
		others: func(r *pageRank) error { return r.resume(pageSoon) },
	},
	"stopped for longer than the timeout": {
		timeout: pageSoon,
		happen:  beStopped,
		others:  func(r *pageRank) error { return r.resume(3 * pageSoon) },
		verdict: lateVerdict,
	},
	"differs": {
		timeout: pageLong, levels: []string{"every"},
		happen: func(_ *pageRank, c *cell) (bool, error) {
			c.count, c.graph = c.count-1, nil
			return true, nil
		},
		verdict: func(err error) string {
			var diverged *symmem.DivergenceError
			if !errors.As(err, &diverged) || len(diverged.Sides) != 2 {
				return "no DivergenceError that names both calls"
			}
			return ""
		},
	},
	"aborts": {
		timeout: pageLong,
		happen: func(_ *pageRank, c *cell) (bool, error) {
			c.group.Abort()
			return true, nil
		},
		verdict: func(err error) string {
			if !errors.Is(err, symmem.ErrAborted) {
				return "not ErrAborted"
			}
			return ""
		},
	},
	"leaves": {
		timeout: pageLong,
		happen:  func(_ *pageRank, c *cell) (bool, error) { return false, c.group.Close() },
		verdict: func(err error) string {
			var stray *driver.StrayError
			if !errors.As(err, &stray) || !strings.Contains(stray.Elsewhere[pageVictim], "left") {
				return "no StrayError that says who has left"
			}
			return ""
		},
	},
}

// beStopped stops this process in front of its first cell, until rank 0 has it go on. The signal
// goes to this thread, which does not return from the call before it has stopped.
func beStopped(r *pageRank, c *cell) (bool, error) {
	if c != r.cells[0] {
		return true, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return true, syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}

func lateVerdict(err error) string {
	var late *symmem.TimeoutError
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{pageVictim}) {
		return "no TimeoutError that names the rank"
	}
	return ""
}

// cell is a group and a stream whose path and mode are those of a cell of the table.
type cell struct {
	name     string
	path     symmem.PathChoice
	replayed bool
	group    *symmem.Group
	stream   *symmem.Stream
	// behind is another stream, which waits for the work of the first one and uses its result.
	behind *symmem.Stream
	event  *symmem.Event
	graph  *symmem.Graph
	count  int64
	data   []int32
	memory symmem.Memory
	out    []int32
	// launch is the error of the call itself.
	launch error
}

const pageElements = 3000

// pageRank is a rank of the world.
type pageRank struct {
	ctx   context.Context
	rt    *symmem.Runtime
	fault fault
	task  pageTask
	pids  []int32
	cells []*cell
	// stopped is closed when the process that this rank has stopped goes on.
	stopped chan struct{}
}

// pageReport is what is wrong about a cell on a rank.
type pageReport struct {
	Rank int
	Cell string
	Bad  []string
}

func TestPage(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"off", "registration", "every"} {
		for name := range pageFaults {
			t.Run(level+"/"+name, func(t *testing.T) {
				t.Parallel()
				reports, err := runPage(t.Context(), pageTask{Level: level, Fault: name})
				if err != nil {
					t.Fatal(err)
				}
				said := map[string]int{}
				for _, r := range reports {
					said[r.Cell]++
					if len(r.Bad) > 0 {
						t.Errorf("%s, rank %d: %s", r.Cell, r.Rank, strings.Join(r.Bad, "; "))
					}
				}
				ranks := pageRanks
				if name == "killed" {
					ranks--
				}
				if len(said) != 4 || len(reports) != 4*ranks {
					t.Errorf("%d cells have %d reports of %d ranks: %v", len(said), len(reports), ranks, said)
				}
			})
		}
	}
}

func runPage(ctx context.Context, task pageTask) (reports []pageReport, err error) {
	j := job{role: "page", ranks: pageRanks, task: task, limit: time.Minute, hear: func(line string) {
		var r pageReport
		if json.Unmarshal([]byte(line), &r) == nil {
			reports = append(reports, r)
		}
	}}
	_, err = j.run(ctx)
	return reports, err
}

func pageRankMain(text []byte) error {
	r := &pageRank{ctx: context.Background()}
	if err := json.Unmarshal(text, &r.task); err != nil {
		return err
	}
	r.fault = pageFaults[r.task.Fault]
	level, err := symmem.ParseCheckLevel(r.task.Level)
	if err != nil {
		return err
	}
	r.rt, err = symmem.Open(r.ctx, symmem.Options{
		Backend: "host", Check: level, Timeout: r.fault.timeout, CheckInterval: -1,
	})
	if err != nil {
		return err
	}
	if err := r.prepare(); err != nil {
		return err
	}
	return r.play()
}

// prepare makes the cells, does each once without a fault, and meets the others.
func (r *pageRank) prepare() error {
	mine, all := []int32{int32(os.Getpid())}, make([]int32, pageRanks)
	world := r.rt.World()
	if err := errors.Join(
		world.AllGather(r.ctx, symmem.Host(mine), symmem.Host(all), 1, symmem.Int32, nil),
		r.rt.DefaultStream().Synchronize(r.ctx)); err != nil {
		return err
	}
	r.pids = all
	for _, path := range []symmem.PathChoice{symmem.PathPlain, symmem.PathWindow} {
		for _, replayed := range []bool{false, true} {
			if err := r.makeCell(path, replayed); err != nil {
				return err
			}
		}
	}
	return errors.Join(world.Barrier(r.ctx, nil), r.rt.DefaultStream().Synchronize(r.ctx))
}

func (r *pageRank) makeCell(path symmem.PathChoice, replayed bool) (err error) {
	c := &cell{path: path, replayed: replayed, count: pageElements, name: path.String() + ", eager"}
	if replayed {
		c.name = path.String() + ", replayed"
	}
	r.cells = append(r.cells, c)
	if c.group, err = r.rt.World().Split(r.ctx, 0, 0); err != nil {
		return err
	}
	if err := c.group.SetPath(r.ctx, path); err != nil {
		return err
	}
	pool, err := r.rt.NewPool(symmem.PoolOptions{Domain: c.group, FirstSegment: 2 << 20})
	if err != nil {
		return err
	}
	b, err := pool.Alloc(4 * pageElements)
	if err != nil {
		return err
	}
	if err := pool.Register(r.ctx, c.group); err != nil {
		return err
	}
	view, err := symmem.View[int32](b)
	if err != nil {
		return err
	}
	c.data, c.out = view[:pageElements], make([]int32, pageElements)
	if c.memory, err = b.Memory().Slice(0, 4*pageElements); err != nil {
		return err
	}
	if err := r.makeStreams(c); err != nil {
		return err
	}
	return r.once(c)
}

func (r *pageRank) makeStreams(c *cell) (err error) {
	if c.stream, err = r.rt.NewStream(); err != nil {
		return err
	}
	if c.behind, err = r.rt.NewStream(); err != nil {
		return err
	}
	c.event, err = r.rt.NewEvent()
	return err
}

// once does the collective of a cell as it is done later, with the graph of replayed ones.
func (r *pageRank) once(c *cell) error {
	fill(c.data, int32(r.rt.Rank()+1))
	if c.replayed {
		if err := c.stream.BeginCapture(); err != nil {
			return err
		}
		if err := r.sum(c); err != nil {
			return err
		}
		var err error
		if c.graph, err = c.stream.EndCapture(); err != nil {
			return err
		}
	}
	if err := errors.Join(r.launch(c), c.stream.Synchronize(r.ctx)); err != nil {
		return err
	}
	if got := differs(c.data, slices.Repeat([]int32{6}, pageElements)); got >= 0 {
		return fmt.Errorf("element %d is %d before any fault", got, c.data[got])
	}
	fill(c.data, int32(r.rt.Rank()+1))
	return nil
}

func (r *pageRank) sum(c *cell) error {
	return c.group.AllReduce(r.ctx, c.memory, c.memory, c.count, symmem.Int32, symmem.Sum, c.stream)
}

// launch makes the collective, by the graph where there is one.
func (r *pageRank) launch(c *cell) error {
	if c.graph != nil {
		return c.graph.Launch(c.stream)
	}
	return r.sum(c)
}

func fill(data []int32, value int32) {
	for i := range data {
		data[i] = value
	}
}

// resume waits until the victim has stopped, and has it go on after a while. Rank 0 does it.
func (r *pageRank) resume(after time.Duration) error {
	if r.rt.Rank() != 0 {
		return nil
	}
	victim := int(r.pids[pageVictim])
	if err := awaitStopped(victim); err != nil {
		return err
	}
	r.stopped = make(chan struct{})
	time.AfterFunc(after, func() {
		syscall.Kill(victim, syscall.SIGCONT)
		close(r.stopped)
	})
	return nil
}

// play queues the collective of every cell with work behind it, lets the fault happen, and says
// what came of it.
func (r *pageRank) play() error {
	victim := r.rt.Rank() == pageVictim
	begin := time.Now()
	for _, c := range r.cells {
		call := true
		if victim {
			var err error
			if call, err = r.fault.happen(r, c); err != nil {
				return err
			}
		}
		r.queue(c, call)
	}
	if !victim && r.fault.others != nil {
		if err := r.fault.others(r); err != nil {
			return err
		}
	}
	for _, c := range r.cells {
		report := pageReport{Rank: r.rt.Rank(), Cell: c.name, Bad: r.judge(c, victim, begin)}
		if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
			return err
		}
	}
	if r.stopped != nil {
		<-r.stopped
	}
	_ = r.rt.Close() // which reports the failures once more
	return nil
}

// queue queues the collective, and on another stream what uses its result.
func (r *pageRank) queue(c *cell, call bool) {
	if call {
		c.launch = r.launch(c)
	}
	c.launch = errors.Join(c.launch, c.stream.Record(c.event), c.behind.Wait(c.event),
		c.behind.Copy(symmem.Host(c.out), c.memory))
}

// judge waits for a cell and returns what is wrong.
func (r *pageRank) judge(c *cell, victim bool, begin time.Time) (bad []string) {
	said := map[string]error{
		"stream behind": c.behind.Synchronize(r.ctx), "event": c.event.Synchronize(r.ctx),
		"stream": c.stream.Synchronize(r.ctx),
	}
	took := time.Since(begin)
	complain := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if r.fault.levels != nil && !slices.Contains(r.fault.levels, r.task.Level) {
		return nil // not promised, but it has ended
	}
	if r.fault.right {
		said["call"] = c.launch
		for what, err := range said {
			if err != nil {
				complain("the %s says %v", what, err)
			}
		}
		if at := differs(c.out, slices.Repeat([]int32{6}, pageElements)); at >= 0 {
			complain("element %d is %d, want 6", at, c.out[at])
		}
		return bad
	}
	left := victim && r.task.Fault == "leaves"
	if at := differs(c.out, make([]int32, pageElements)); at >= 0 && !left {
		complain("work behind the failure has run: element %d is %d", at, c.out[at])
	}
	if victim {
		if said["stream"] == nil && r.task.Fault != "leaves" {
			complain("the rank that erred is told nothing")
		}
		return bad
	}
	said["group"] = c.group.Err()
	for what, err := range said {
		if err != nil && said["group"] != nil && err.Error() != said["group"].Error() {
			complain("the %s says %v, the group %v", what, err, said["group"])
		}
		if why := r.fault.verdict(err); why != "" {
			complain("the %s says %v: %s", what, err, why)
		}
	}
	if r.task.Fault == "killed" && took > pageNamed {
		complain("that took %v", took)
	}
	for i, got := range c.data {
		written := r.task.Fault == "differs" && got == 6
		if written || got != int32(r.rt.Rank()+1) && got != 6 {
			complain("element %d is %d, neither what it was nor the sum", i, got)
			break
		}
	}
	return bad
}
