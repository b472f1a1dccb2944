package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"symmem"
)

// pageRank runs a task as one rank.
type pageRank struct {
	ctx   context.Context
	rt    *symmem.Runtime
	world *pageWorld
	fault fault
	task  pageTask
	// victim is the process ID of the victim. goOn receives the SIGCONT of this process.
	victim int
	goOn   chan os.Signal
	cells  []*cell
	// aside is a stream that only reads memory.
	aside *symmem.Stream
}

// pageReport lists what is wrong with a cell on a rank.
type pageReport struct {
	Rank int
	Cell string
	Bad  []string
}

// pageRankMain is the main function of a rank.
func pageRankMain(text []byte) error {
	r := &pageRank{ctx: context.Background(), goOn: make(chan os.Signal, 1)}
	signal.Notify(r.goOn, syscall.SIGCONT)
	if err := json.Unmarshal(text, &r.task); err != nil {
		return err
	}
	r.world, r.fault, r.cells = pageWorlds[r.task.World], pageFaults[r.task.Fault], r.task.cells()
	level, err := symmem.ParseCheckLevel(r.task.Level)
	if err != nil {
		return err
	}
	if err := r.prepare(level); err != nil {
		return err
	}
	return r.play()
}

// isVictim reports whether this rank is the victim.
func (r *pageRank) isVictim() bool { return r.rt.Rank() == pageVictim }

// prepare opens the world, makes and rehearses the cells, and waits for the other ranks.
func (r *pageRank) prepare(level symmem.CheckLevel) (err error) {
	// The timeout may be too short for this.
	ctx, cancel := context.WithTimeout(r.ctx, pageLong)
	defer cancel()
	r.rt, err = symmem.Open(ctx, symmem.Options{
		Backend: r.world.backend, Check: level, Timeout: r.fault.timeout(r.world), CheckInterval: -1,
	})
	if err != nil {
		return err
	}
	if err := r.meet(ctx); err != nil {
		return err
	}
	for _, c := range r.cells {
		if err := errors.Join(c.make(ctx, r.rt), c.rehearse(ctx, r.rt)); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if r.aside, err = r.rt.NewStream(); err != nil {
		return err
	}
	err = errors.Join(r.rt.World().Barrier(ctx, nil), r.rt.DefaultStream().Synchronize(ctx))
	var lost *symmem.RankLostError
	if r.task.Fault == "killed" && errors.As(err, &lost) {
		return nil // the victim passed the barrier and was killed before this rank did
	}
	return err
}

// meet distributes the process ID of the victim.
func (r *pageRank) meet(ctx context.Context) error {
	pool, err := r.rt.NewPool(symmem.PoolOptions{Domain: r.rt.World()})
	if err != nil {
		return err
	}
	b, err := pool.Alloc(4)
	if err != nil {
		return err
	}
	m, err := b.Memory().Slice(0, 4)
	if err != nil {
		return err
	}
	pid, s := []int32{int32(os.Getpid())}, r.rt.DefaultStream()
	err = errors.Join(s.Copy(m, symmem.Host(pid)),
		r.rt.World().Broadcast(ctx, m, m, 1, symmem.Int32, pageVictim, s),
		s.Synchronize(ctx), s.Copy(symmem.Host(pid), m), s.Synchronize(ctx))
	r.victim = int(pid[0])
	return err
}

// play makes the collective of every cell, with the fault on the victim and work behind the
// collective, and reports the outcome.
func (r *pageRank) play() error {
	begin, judged, resumed := time.Now(), make(chan struct{}), make(chan error, 1)
	if r.rt.Rank() == 0 && (r.fault.stops || r.fault.late) {
		go func() { resumed <- r.resume(judged) }()
	} else {
		close(resumed)
	}
	took := make([]<-chan time.Duration, len(r.cells))
	for i, c := range r.cells {
		took[i] = c.ending(begin)
		call := true
		if r.isVictim() {
			var err error
			if call, err = r.fault.happen(r, c); err != nil {
				return err
			}
		}
		if call {
			c.launch = c.call(r.ctx)
		}
		c.queue = c.follow()
	}
	for i, c := range r.cells {
		report := pageReport{Rank: r.rt.Rank(), Cell: c.name, Bad: r.judge(c, took[i])}
		if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
			return err
		}
	}
	close(judged)
	err := <-resumed
	_ = r.rt.Close() // returns the failures again
	return err
}

// resume continues the victim.
func (r *pageRank) resume(judged <-chan struct{}) error {
	if r.fault.stops {
		if err := awaitStopped(r.victim); err != nil {
			return err
		}
	}
	if r.fault.late {
		<-judged
	} else {
		<-time.After(pageWhile)
	}
	return syscall.Kill(r.victim, syscall.SIGCONT)
}

// complaints lists what is wrong.
type complaints []string

// add adds a complaint.
func (c *complaints) add(format string, args ...any) {
	*c = append(*c, fmt.Sprintf(format, args...))
}

// judge waits for a cell and returns what is wrong.
func (r *pageRank) judge(c *cell, took <-chan time.Duration) (bad complaints) {
	said := r.listen(c)
	switch {
	case !c.promised: // the cell only has to end
	case r.fault.right:
		r.judgeRight(c, said, &bad)
	case r.isVictim():
		if said["call"] == nil && said["stream"] == nil && r.task.Fault != "leaves" {
			bad.add("the victim got no error")
		}
		r.judgeMemory(c, &bad)
	default:
		said["group"] = c.group.Cause(r.ctx)
		r.judgeErrors(said, &bad)
		r.judgeMemory(c, &bad)
		if d := <-took; r.task.Fault == "killed" && d > pageNamed {
			bad.add("the group ended after %v", d)
		}
	}
	return bad
}

// listen waits for the work of a cell, and returns the errors by their sources.
func (r *pageRank) listen(c *cell) map[string]error {
	said := map[string]error{"call": c.launch, "stream": c.stream.Synchronize(r.ctx)}
	if r.world.endsBehind || r.fault.right {
		behind, event := c.behind.Synchronize(r.ctx), c.event.Synchronize(r.ctx)
		if r.world.flows || r.fault.right {
			said["stream behind"], said["event"] = behind, event
		}
	}
	return said
}

// judgeRight checks a cell that must have no error and right results.
func (r *pageRank) judgeRight(c *cell, said map[string]error, bad *complaints) {
	said["work behind"] = c.queue
	said["group"] = c.group.Cause(r.ctx)
	for what, err := range said {
		if err != nil {
			bad.add("the %s returns %v", what, err)
		}
	}
	r.expect(c.memory, "the sum", bad, pageSum)
	r.expect(c.result, "its copy", bad, pageSum)
}

// judgeErrors checks the errors of a rank other than the victim. If failures flow forward, all
// sources must return the same error; else the call or the stream must.
func (r *pageRank) judgeErrors(said map[string]error, bad *complaints) {
	if r.world.flows {
		delete(said, "call") // it may return before the fault
	} else {
		said["call or stream"] = cmp.Or(said["call"], said["stream"])
		delete(said, "call")
		delete(said, "stream")
	}
	for what, err := range said {
		if err != nil && said["group"] != nil && err.Error() != said["group"].Error() {
			bad.add("the %s returns %v, the group %v", what, err, said["group"])
		}
		if why := r.fault.verdict(&r.task, err); why != "" {
			bad.add("the %s returns %v: %s", what, err, why)
		}
	}
}

// judgeMemory checks memory after a failure. What NCCL's aborted kernels have written is undefined.
func (r *pageRank) judgeMemory(c *cell, bad *complaints) {
	before := own(r.rt)
	switch {
	case c.path == symmem.PathDirect:
		r.expectBroken(c, bad)
	case r.task.Fault == "differs":
		r.expect(c.memory, "the buffer", bad, before)
	case r.world.flows:
		r.expect(c.memory, "the buffer", bad, before, pageSum)
	}
	if r.world.flows && !(r.isVictim() && r.task.Fault == "leaves") {
		r.expect(c.result, "the result of work behind the failure", bad, 0)
	}
}

// expectBroken complains unless a buffer is unchanged, as after a refused call, or consists of sums
// and NaNs.
func (r *pageRank) expectBroken(c *cell, bad *complaints) {
	got, err := read(r.ctx, r.aside, c.memory)
	if err != nil {
		bad.add("reading the buffer: %v", err)
		return
	}
	got = got[:c.count]
	first := slices.IndexFunc(got, func(v float32) bool { return v != own(r.rt) })
	if first < 0 {
		return
	}
	at := slices.IndexFunc(got, func(v float32) bool { return v != pageSum && v == v })
	if at >= 0 {
		bad.add("element %d of the buffer is %v, neither the sum nor NaN, but element %d has changed",
			at, got[at], first)
	}
}

// expect complains about elements with other values.
func (r *pageRank) expect(m symmem.Memory, what string, bad *complaints, values ...float32) {
	got, err := read(r.ctx, r.aside, m)
	if err != nil {
		bad.add("reading %s: %v", what, err)
		return
	}
	at := slices.IndexFunc(got, func(v float32) bool { return !slices.Contains(values, v) })
	if at >= 0 {
		bad.add("element %d of %s is %v, want one of %v", at, what, got[at], values)
	}
}
