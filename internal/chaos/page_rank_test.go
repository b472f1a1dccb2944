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
	"strings"
	"syscall"
	"time"

	"symmem"
)

type pageRank struct {
	ctx   context.Context
	rt    *symmem.Runtime
	world *pageWorld
	fault fault
	task  pageTask
	// victim is the process ID of the victim. resumeSignal receives the SIGCONT signals sent to
	// this process.
	victim       int
	resumeSignal chan os.Signal
	cells        []*cell
	// reader is a stream that is used only to read results.
	reader *symmem.Stream
}

type pageReport struct {
	Rank int
	Cell string
	Bad  []string
}

func pageRankMain(text []byte) error {
	r := &pageRank{ctx: context.Background(), resumeSignal: make(chan os.Signal, 1)}
	signal.Notify(r.resumeSignal, syscall.SIGCONT)
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

func (p *pageRank) isVictim() bool { return p.rt.Rank() == pageVictim }

func (p *pageRank) prepare(level symmem.CheckLevel) (err error) {
	// The world's timeout may be too short for these preparations.
	ctx, cancel := context.WithTimeout(p.ctx, pageTimeout)
	defer cancel()
	p.rt, err = symmem.Open(ctx, symmem.Options{
		Backend: p.world.backend, Check: level, Timeout: p.fault.timeout(p.world), CheckInterval: -1,
	})
	if err != nil {
		return err
	}

	if err := p.shareVictim(ctx); err != nil {
		return err
	}

	for _, c := range p.cells {
		if err := errors.Join(c.setUp(ctx, p.rt), c.rehearse(ctx, p.rt)); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}

	if p.reader, err = p.rt.NewStream(); err != nil {
		return err
	}

	err = errors.Join(p.rt.World().Barrier(ctx, nil), p.rt.DefaultStream().Synchronize(ctx))
	var lost *symmem.RankLostError
	if p.task.Fault == "killed" && errors.As(err, &lost) {
		return nil // the victim was killed after the barrier
	}

	return err
}

func (p *pageRank) shareVictim(ctx context.Context) error {
	pool, err := p.rt.NewPool(symmem.PoolOptions{Domain: p.rt.World()})
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

	pid, s := []int32{int32(os.Getpid())}, p.rt.DefaultStream()
	err = errors.Join(s.Copy(m, symmem.Host(pid)),
		p.rt.World().Broadcast(ctx, m, m, 1, symmem.Int32, pageVictim, s),
		s.Synchronize(ctx), s.Copy(symmem.Host(pid), m), s.Synchronize(ctx))
	p.victim = int(pid[0])
	return err
}

// play runs the collective of every cell and queues work after it. On the victim, it injects the
// fault first. It then reports the outcome of every cell.
func (p *pageRank) play() error {
	begin, checked, resumed := time.Now(), make(chan struct{}), make(chan error, 1)
	if p.rt.Rank() == 0 && (p.fault.isStopped || p.fault.isLate) {
		go func() { resumed <- p.resume(checked) }()
	} else {
		close(resumed)
	}

	took := make([]<-chan time.Duration, len(p.cells))
	for i, c := range p.cells {
		took[i] = c.watchEnd(begin)
		call := true
		if p.isVictim() {
			var err error
			if call, err = p.fault.inject(p, c); err != nil {
				return err
			}
		}

		if call {
			c.launchErr = c.call(p.ctx)
		}

		c.queueErr = c.queueFollowingCopy()
	}

	for i, c := range p.cells {
		report := pageReport{Rank: p.rt.Rank(), Cell: c.name, Bad: p.check(c, took[i])}
		if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
			return err
		}
	}

	close(checked)
	err := <-resumed
	_ = p.rt.Close() // ignore failures, which have already been checked
	return err
}

// resume resumes the victim. If the fault is late, resume waits for this rank's checks first;
// otherwise, it waits for pageDelay.
func (p *pageRank) resume(checked <-chan struct{}) error {
	if p.fault.isStopped {
		if err := awaitStopped(p.victim); err != nil {
			return err
		}
	}

	if p.fault.isLate {
		<-checked
	} else {
		<-time.After(pageDelay)
	}

	return syscall.Kill(p.victim, syscall.SIGCONT)
}

type failureList []string

func (l *failureList) add(format string, args ...any) {
	*l = append(*l, fmt.Sprintf(format, args...))
}

func (p *pageRank) check(c *cell, took <-chan time.Duration) (failures failureList) {
	errs := p.collectErrors(c)
	switch {
	case !c.isPromised: // The work must end, with any outcome.
	case p.fault.wantSuccess:
		p.checkSuccess(c, errs, &failures)
	case p.isVictim():
		if errs["call"] == nil && errs["stream"] == nil && p.task.Fault != "leaves" {
			failures.add("the victim's call and stream returned no error")
		}

		p.checkMemory(c, &failures)
	default:
		errs["group"] = c.group.Cause(p.ctx)
		p.checkErrors(errs, &failures)
		p.checkMemory(c, &failures)
		if d := <-took; p.task.Fault == "killed" && d > pageNamingLimit {
			failures.add("the group failed after %v, want at most %v", d, pageNamingLimit)
		}
	}

	return failures
}

func (p *pageRank) collectErrors(c *cell) map[string]error {
	errs := map[string]error{"call": c.launchErr, "stream": c.stream.Synchronize(p.ctx)}
	if p.world.followingWorkEnds || p.fault.wantSuccess {
		follower, event := c.followingStream.Synchronize(p.ctx), c.event.Synchronize(p.ctx)
		if p.world.areErrorsPropagated || p.fault.wantSuccess {
			errs["following stream"], errs["event"] = follower, event
		}
	}

	return errs
}

func (p *pageRank) checkSuccess(c *cell, errs map[string]error, failures *failureList) {
	errs["call that queues following work"] = c.queueErr
	errs["group"] = c.group.Cause(p.ctx)
	for source, err := range errs {
		if err != nil {
			failures.add("the %s returned %v, want no error", source, err)
		}
	}

	p.expect(c.memory, "the sum", failures, pageSum)
	p.expect(c.result, "its copy", failures, pageSum)
}

// checkErrors checks the errors that a rank other than the victim got, by their source. If
// errors spread to following work, every source must return the group's error. Otherwise, it is
// enough if the call or the stream does. A call that begins after the failure wraps the error.
func (p *pageRank) checkErrors(errs map[string]error, failures *failureList) {
	if p.world.areErrorsPropagated {
		delete(errs, "call") // the call may have returned before the fault
	} else {
		errs["call or stream"] = cmp.Or(errs["call"], errs["stream"])
		delete(errs, "call")
		delete(errs, "stream")
	}

	groupErr := errs["group"]
	for source, err := range errs {
		if err != nil && groupErr != nil && !strings.HasSuffix(err.Error(), groupErr.Error()) {
			failures.add("the %s returned %v, but the group's error is %v", source, err, groupErr)
		}

		if why := p.fault.checkError(&p.task, err); why != "" {
			failures.add("the %s returned %v: %s", source, err, why)
		}
	}
}

// checkMemory checks the contents of buffers after a failure. It does not check the output of
// aborted NCCL kernels, which is undefined.
func (p *pageRank) checkMemory(c *cell, failures *failureList) {
	before := ownValue(p.rt)
	switch {
	case c.path == symmem.PathDirect:
		p.expectPartialSum(c, failures)
	case p.task.Fault == "differs":
		p.expect(c.memory, "the buffer", failures, before)
	case p.world.areErrorsPropagated:
		p.expect(c.memory, "the buffer", failures, before, pageSum)
	}

	if p.world.areErrorsPropagated && !(p.isVictim() && p.task.Fault == "leaves") {
		p.expect(c.result, "the result of work after the failure", failures, 0)
	}
}

// expectPartialSum checks the output of a call that may have been interrupted. The whole buffer
// must be unchanged, as after a refused call, or every element must be the sum or NaN.
func (p *pageRank) expectPartialSum(c *cell, failures *failureList) {
	got, err := read(p.ctx, p.reader, c.memory)
	if err != nil {
		failures.add("reading the buffer: %v", err)
		return
	}

	got = got[:c.count]
	first := slices.IndexFunc(got, func(v float32) bool { return v != ownValue(p.rt) })
	if first < 0 {
		return
	}

	index := slices.IndexFunc(got, func(v float32) bool { return v != pageSum && v == v })
	if index >= 0 {
		failures.add("element %d of the buffer is %v, want the sum or NaN, since element %d has changed",
			index, got[index], first)
	}
}

// expect adds a failure if any element of m has none of the given values.
func (p *pageRank) expect(m symmem.Memory, name string, failures *failureList, values ...float32) {
	got, err := read(p.ctx, p.reader, m)
	if err != nil {
		failures.add("reading %s: %v", name, err)
		return
	}

	index := slices.IndexFunc(got, func(v float32) bool { return !slices.Contains(values, v) })
	if index >= 0 {
		failures.add("element %d of %s is %v, want one of %v", index, name, got[index], values)
	}
}
