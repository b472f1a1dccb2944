package nccl

import (
	"cmp"
	"fmt"
	"math/bits"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/cuda"
)

// directPath runs collectives of a group by kernels of our own (package kernels).
type directPath struct {
	// none says why the group has none; empty if it has. It is set before the group is used.
	none string
	// choose is kernels.Choose; a test counts its calls.
	choose   func(*kernels.Request) (kernels.Launch, error)
	exchange direct.Exchange
	turns    direct.Turns
	// shown is where ranks see what others have launched.
	shown control.Announcements
}

// chosen is the kernel of our own that a call takes on the direct path, or why there is none.
type chosen struct {
	launch kernels.Launch
	err    error
}

// choose finds the kernel of a call, once.
func (p *plan) choose() *chosen {
	if p.chosen == nil {
		launch, err := p.c.direct.choose(p.c.request(&p.Call))
		p.chosen = &chosen{launch, err}
	}
	return p.chosen
}

// refuseDirect says why no kernel of our own can run a call, if none can.
func (p *plan) refuseDirect() error {
	if p.c.direct.none != "" {
		return fmt.Errorf("%s: %w", p.c.direct.none, driver.ErrUnsupported)
	}
	err := p.choose().err
	if err == nil {
		return nil
	}
	if why := p.c.unreached(&p.Call); why != "" {
		err = fmt.Errorf("peers' memory could not be mapped: %s", why)
	}
	return fmt.Errorf("%w: %w", err, driver.ErrUnsupported)
}

func (c *communicator) request(call *driver.Call) *kernels.Request {
	return &kernels.Request{
		Call: call, Rank: c.cfg.Rank, Ranks: len(c.cfg.Ranks), Formula: c.cfg.Formula,
		Symmetric:       c.peersReach(call.SendWindow) && c.peersReach(call.RecvWindow),
		Multiprocessors: c.direct.exchange.Multiprocessors,
	}
}

// peersReach reports whether the ranks have mapped each other's segments under a window.
func (c *communicator) peersReach(in driver.Window) bool {
	w, ok := in.(*window)
	return ok && w != nil && w.c == c && w.reached
}

// unreached says why the segments under a call are not mapped by all ranks; it is empty if they
// are, or if the call is not in windows.
func (c *communicator) unreached(call *driver.Call) string {
	for _, in := range []driver.Window{call.SendWindow, call.RecvWindow} {
		if w, ok := in.(*window); ok && w != nil && w.c == c && !w.reached {
			return w.unreached
		}
	}
	return ""
}

// kernel is a prepared launch.
type kernel struct {
	function cuda.Function
	grid     cuda.Dim
	block    cuda.Dim
	params   cuda.Params
	// overlaps tells that it may start before those ahead of it in the stream have ended.
	overlaps bool
	// local tells that it works on this GPU alone: it meets no other rank, and has no digest.
	local bool
	// then is launched right behind it, and belongs to the same call, or is nil.
	then *kernel
}

// kernelSlack is how much longer than the watcher a kernel waits for ranks that do not come: the
// watcher knows what they are doing instead.
const kernelSlack = 2 * time.Second

// prepareDirect works out the launches of a call.
func (p *plan) prepareDirect() error {
	c, launch := p.c, &p.choose().launch
	at, report, err := c.direct.exchange.Places()
	if err != nil {
		return err
	}
	a := kernels.Arguments{
		Rank: c.cfg.Rank, Ranks: len(c.cfg.Ranks), Digest: p.Digest, Send: p.Send, Recv: p.Recv,
		Exchange: at, Timeout: c.device.cfg.Timeout + kernelSlack, Report: report,
	}
	if launch.Bulk {
		p.SendWindow.(*window).locate(p.Send, &a.SendAt)
		p.RecvWindow.(*window).locate(p.Recv, &a.RecvAt)
	}
	k := &kernel{
		grid: cuda.Dim{X: uint32(launch.Blocks)}, block: cuda.Dim{X: uint32(launch.Threads)},
		overlaps: c.overlap() && launch.Overlaps(),
	}
	var then string
	if p.Norm != nil {
		k.then, then = p.rest(k.overlaps, at[c.cfg.Rank])
	}
	return c.device.gpu.Do(func() error {
		k.function, err = c.device.collectives.Function(c.device.gpu, launch.Kernel)
		if err == nil && k.then != nil {
			k.then.function, err = c.device.collectives.Function(c.device.gpu, then)
		}
		p.kernel, p.meetings = k.inPieces(launch, &a), launch.Pieces
		return err
	})
}

// inPieces is the kernel once for each piece of a launch. The pieces have one digest, and numbers
// of their own as calls have: ranks that have come to the same call have the same pieces.
func (k *kernel) inPieces(of *kernels.Launch, a *kernels.Arguments) *kernel {
	first := k.then
	for i := of.Pieces - 1; i >= 0; i-- {
		one, piece := *k, of.Piece(i)
		one.params, one.then = piece.Params(a), first
		first = &one
	}
	return first
}

// overlap reports whether kernels may begin before those ahead of them have ended: not where ranks
// of this process share the GPU, where blocks that wait could hold what another rank needs.
func (c *communicator) overlap() bool {
	return c.device.collectives.Overlaps && !c.direct.exchange.Shares()
}

// rest is what a norm has to do after the all-reduce, whose output it works on, and the name of the
// kernel that does it. It writes marks if the all-reduce has failed.
func (p *plan) rest(overlaps bool, exchange uintptr) (k *kernel, name string) {
	l := kernels.Local{
		Norm: *p.Norm, Send: p.Recv, Recv: p.Recv, Fault: exchange + kernels.FaultOffset,
	}
	blocks, threads := l.Grid()
	overlaps = overlaps && l.Overlaps(p.c.direct.exchange.Multiprocessors)
	return &kernel{
		grid: cuda.Dim{X: uint32(blocks)}, block: cuda.Dim{X: uint32(threads)}, params: l.Params(),
		overlaps: overlaps, local: true,
	}, l.Kernel(overlaps)
}

// queue launches the kernel and what belongs to the same call.
func (k *kernel) queue(gpu *cuda.Driver, on cuda.Stream) error {
	for ; k != nil; k = k.then {
		if err := k.launch(gpu, on); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernel) launch(gpu *cuda.Driver, on cuda.Stream) error {
	if k.overlaps {
		return gpu.LaunchOverlapping(k.function, k.grid, k.block, on, &k.params)
	}
	return gpu.LaunchKernel(k.function, k.grid, k.block, 0, on, &k.params)
}

// inTurn queues a call after those of the group on other streams and in replays. s.Mu and c.mu are
// held.
func (c *communicator) inTurn(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	switch {
	case s.Recording:
		return c.queueRecorded(p, s, gpu)
	case s.Capture != nil:
		return p.queue(s, gpu) // the graph takes its turn when it is launched
	}
	t := &c.direct.turns
	err := t.Take(c.group, s, p.ordered(), gpu)
	if err == nil {
		err = p.queue(s, gpu)
	}
	if err == nil {
		err = t.Pass(s, gpu)
	}
	return err
}

// differing returns the error of a call that other ranks have launched otherwise, or nil.
func (c *communicator) differing(call *driver.Call, ticket uint64) error {
	if c.direct.shown == nil {
		return nil
	}
	ranks := c.direct.shown.Differing(ticket, call.Digest)
	if len(ranks) == 0 {
		return nil
	}
	return c.cfg.Mismatch(ticket, call, ranks...)
}

// strayed reports whether other ranks have launched something else under a ticket of this rank.
func (c *communicator) strayed(ticket uint64) error {
	p := c.history.of(ticket)
	if p == nil || !c.check.Load() {
		return nil
	}
	return c.differing(&p.Call, ticket)
}

// askKernels fails the communicator if a kernel has reported a fault, and returns the first one.
func (c *communicator) askKernels() error {
	err := c.faulted()
	if err == nil {
		return nil
	}
	_ = c.plane.Fail(err)
	return c.plane.Cause()
}

// faulted tells what a kernel has reported, as an error, or nil.
func (c *communicator) faulted() error {
	report, found := c.direct.exchange.Reported()
	if !found {
		return nil
	}
	call, ticket := c.history.launches.Culprit(&report)
	doing := c.doing(call, ticket, report.Epoch)
	switch report.Fault() {
	case kernels.Diverged:
		if ticket != 0 {
			if err := c.differing(call, ticket); err != nil {
				return err // which knows of all ranks
			}
		}
		differs := c.cfg.Mismatch(cmp.Or(ticket, report.Epoch), call, int(report.Ranks))
		differs.Launch = ticket == 0
		return differs
	case kernels.TimedOut:
		e := &driver.TimeoutError{
			Doing: doing, Waited: c.device.cfg.Timeout, Members: c.cfg.Ranks,
		}
		for set := report.Ranks; set != 0; set &= set - 1 {
			e.Missing = append(e.Missing, c.cfg.Ranks[bits.TrailingZeros32(set)])
		}
		return e
	default:
		return fmt.Errorf("%s: a kernel reports fault %d", doing, report.Fault())
	}
}

// doing names a call by its ticket, or, where that is not known, by the launch of the kernel.
func (c *communicator) doing(call *driver.Call, ticket, launch uint64) string {
	text := fmt.Sprintf("%v %d of group %s", call.Operation, ticket, c.cfg.Name())
	if ticket == 0 {
		text = fmt.Sprintf("%v, launch %d of group %s", call.Operation, launch, c.cfg.Name())
	}
	if at := call.Recorded.String(); at != "" {
		text += ", " + at
	}
	return text
}

// queueRecorded puts a call into a capture of the stream's owner, behind those of the group that
// are there. s.Mu and c.mu are held.
func (c *communicator) queueRecorded(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	return c.recording.Launch(&c.direct.turns, s, c.device.streams, func() error {
		return p.queue(s, gpu)
	})
}
