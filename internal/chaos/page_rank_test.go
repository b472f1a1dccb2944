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

// pageRank is a rank of the world.
type pageRank struct {
	ctx   context.Context
	rt    *symmem.Runtime
	world *pageWorld
	fault fault
	task  pageTask
	// victim is the process of the rank that the fault is about, and goOn has its SIGCONT.
	victim int
	goOn   chan os.Signal
	cells  []*cell
	// aside is a stream for nothing but looking at memory.
	aside *symmem.Stream
}

// pageReport is what is wrong about a cell on a rank.
type pageReport struct {
	Rank int
	Cell string
	Bad  []string
}

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

func (r *pageRank) isVictim() bool { return r.rt.Rank() == pageVictim }

// prepare opens the world, makes the cells, does each once without a fault, and meets the others.
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
		return nil // the victim has met all, and was killed before this rank knew that it had
	}
	return err
}

// meet has the victim tell the others its process.
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

// play queues the collective of every cell with work behind it, lets the fault happen, and says
// what came of it.
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
	_ = r.rt.Close() // which reports the failures once more
	return err
}

// resume has the victim go on.
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

// complaints are what is wrong.
type complaints []string

func (c *complaints) add(format string, args ...any) {
	*c = append(*c, fmt.Sprintf(format, args...))
}

// judge waits for a cell and returns what is wrong.
func (r *pageRank) judge(c *cell, took <-chan time.Duration) (bad complaints) {
	said := r.listen(c)
	switch {
	case !c.promised: // but it has ended
	case r.fault.right:
		r.judgeRight(c, said, &bad)
	case r.isVictim():
		if said["call"] == nil && said["stream"] == nil && r.task.Fault != "leaves" {
			bad.add("the rank that erred is told nothing")
		}
		r.judgeMemory(c, &bad)
	default:
		said["group"] = c.group.Cause(r.ctx)
		r.judgeErrors(said, &bad)
		r.judgeMemory(c, &bad)
		if d := <-took; r.task.Fault == "killed" && d > pageNamed {
			bad.add("that took %v", d)
		}
	}
	return bad
}

// listen waits for the work of a cell, and returns what is said about it.
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

func (r *pageRank) judgeRight(c *cell, said map[string]error, bad *complaints) {
	said["work behind"] = c.queue
	said["group"] = c.group.Cause(r.ctx)
	for what, err := range said {
		if err != nil {
			bad.add("the %s says %v", what, err)
		}
	}
	r.expect(c.memory, "the sum", bad, pageSum)
	r.expect(c.result, "its copy", bad, pageSum)
}

// judgeErrors looks at what is said on a rank that did nothing wrong. Where the failure flows
// forward everybody says the same; else either the call or the stream does.
func (r *pageRank) judgeErrors(said map[string]error, bad *complaints) {
	if r.world.flows {
		delete(said, "call") // which may return before anything goes wrong
	} else {
		said["call or stream"] = cmp.Or(said["call"], said["stream"])
		delete(said, "call")
		delete(said, "stream")
	}
	for what, err := range said {
		if err != nil && said["group"] != nil && err.Error() != said["group"].Error() {
			bad.add("the %s says %v, the group %v", what, err, said["group"])
		}
		if why := r.fault.verdict(&r.task, err); why != "" {
			bad.add("the %s says %v: %s", what, err, why)
		}
	}
}

// judgeMemory looks at memory after a failure. NCCL's kernels are ended in the middle, and nothing
// is promised of what they have written.
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

// expectBroken complains of a buffer that is neither what it was, as after a call that was refused,
// nor of sums and NaNs.
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
		bad.add("element %d of the buffer is %v, neither the sum nor a NaN, as %d is", at, got[at],
			first)
	}
}

// expect complains of an element that is none of some values.
func (r *pageRank) expect(m symmem.Memory, what string, bad *complaints, values ...float32) {
	got, err := read(r.ctx, r.aside, m)
	if err != nil {
		bad.add("reading %s: %v", what, err)
		return
	}
	at := slices.IndexFunc(got, func(v float32) bool { return !slices.Contains(values, v) })
	if at >= 0 {
		bad.add("element %d of %s is %v, not of %v", at, what, got[at], values)
	}
}
