package tcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/internal/netlab"
	"symmem/internal/sys"
)

// lanLink simulates a link in a data center, and wanLink simulates a slow and lossy link.
var (
	lanLink = netlab.Link{MinDelay: 100 * time.Microsecond, MaxDelay: 200 * time.Microsecond}
	wanLink = netlab.Link{
		MinDelay: 100 * time.Microsecond, MaxDelay: 50 * time.Millisecond, Loss: 0.01,
	}
)

// detectionLimit bounds the time from a network fault until all survivors have agreed on the cause
// and left. Once a silent machine has been detected, the survivors may need another 10 s.
const detectionLimit = sys.SilenceLimit + 10*time.Second

// longestStall is the longest time for which the simulated network may stall in a test. After a
// longer stall, the test is skipped instead of failed.
const longestStall = time.Second

// clusterTest wraps a test. It skips the test instead of making it fail if the simulated network
// has stalled or dropped packets because the host is busy.
type clusterTest struct {
	testing.TB
	lab *netlab.Lab
}

func (t *clusterTest) Errorf(format string, args ...any) {
	t.Helper()
	stalled, dropped := t.lab.LongestStall(), t.lab.DroppedPackets()
	if stalled > longestStall || dropped > 0 {
		t.Logf(format, args...)
		t.Skip(fmt.Errorf("the host is busy: the simulated network has stood still for %v, and dropped "+
			"%d packets: %w", stalled, dropped, errors.ErrUnsupported))
	}

	t.TB.Errorf(format, args...)
}

func (t *clusterTest) Fatalf(format string, args ...any) {
	t.Helper()
	t.Errorf(format, args...)
	t.FailNow()
}

// cluster runs ranks on simulated machines. It numbers the ranks machine by machine.
type cluster struct {
	t     testing.TB
	lab   *netlab.Lab
	ranks []*machineProcess
	local int // number of ranks on each machine
	idle  int // number of machines at the end of lab.Machines that run no ranks
	// lastWaits makes the last rank wait for a line of input before it joins.
	lastWaits bool
}

// machineProcess is the process of a rank.
type machineProcess struct {
	rank    int
	command *exec.Cmd
	input   io.WriteCloser

	mu     sync.Mutex
	events []machineEvent // guarded by mu
	times  []time.Time    // of the events; guarded by mu
	more   chan struct{}  // closed and replaced at each event; guarded by mu
	exited bool           // guarded by mu
}

// newCluster creates a lab in which all links behave as link describes, and starts the ranks.
func newCluster(
	t testing.TB, cfg netlab.Config, local int, link netlab.Link, r machineRank,
) *cluster {
	t.Helper()
	c := newIdleCluster(t, cfg, local)
	c.lab.SetAll(link)
	c.start(r)
	return c
}

// newIdleCluster returns a cluster with perfect links, whose ranks have not been started.
func newIdleCluster(t testing.TB, cfg netlab.Config, local int) *cluster {
	t.Helper()
	lab := netlab.New(t, cfg)
	return &cluster{t: &clusterTest{t, lab}, lab: lab, local: local}
}

// start starts the ranks. r holds the fields that are the same on all ranks. If r.Store is empty,
// the first machine serves the store.
func (c *cluster) start(r machineRank) {
	c.t.Helper()
	r.Size, r.LocalSize = c.local*(len(c.lab.Machines)-c.idle), c.local
	if r.Store == "" {
		r.Store = netip.AddrPortFrom(c.lab.Machines[0].Addresses[0], storePort).String()
	}

	r.Token = strconv.FormatUint(rand.Uint64(), 36)
	for rank := range r.Size {
		r.Rank, r.LocalRank = rank, rank%c.local
		r.WaitsForInput = c.lastWaits && rank == r.Size-1
		c.ranks = append(c.ranks, c.startRank(r))
	}
}

func (c *cluster) startRank(r machineRank) *machineProcess {
	c.t.Helper()
	text, err := json.Marshal(r)
	check(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	p := &machineProcess{
		rank: r.Rank, command: exec.CommandContext(ctx, os.Args[0]), more: make(chan struct{}),
	}
	p.command.Env = append(os.Environ(), machineRankVariable+"="+string(text))
	p.command.Stderr = os.Stderr
	output, err := p.command.StdoutPipe()
	check(c.t, err)
	p.input, err = p.command.StdinPipe()
	check(c.t, err)
	check(c.t, c.lab.Machines[r.Rank/c.local].Start(p.command))
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.read(output)
		_ = p.command.Wait()
	}()
	c.t.Cleanup(func() { cancel(); <-done })
	return p
}

func (p *machineProcess) read(output io.Reader) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		var e machineEvent
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			p.add(e, false)
		}
	}

	p.add(machineEvent{}, true)
}

func (p *machineProcess) add(e machineEvent, exited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited = exited; !exited {
		p.events, p.times = append(p.events, e), append(p.times, time.Now())
	}

	close(p.more)
	p.more = make(chan struct{})
}

// await waits for an event for which match returns true. It returns false if the rank exits or
// the deadline passes without such an event.
func (p *machineProcess) await(
	deadline time.Time, match func(machineEvent) bool,
) (e machineEvent, at time.Time, ok bool) {
	timeout := time.After(time.Until(deadline))
	for {
		p.mu.Lock()
		i, more, exited := slices.IndexFunc(p.events, match), p.more, p.exited
		if i >= 0 {
			e, at = p.events[i], p.times[i]
		}

		p.mu.Unlock()
		if i >= 0 || exited {
			return e, at, i >= 0
		}

		select {
		case <-more:
		case <-timeout:
			return e, at, false
		}
	}
}

func eventNamed(event string) func(machineEvent) bool {
	return func(e machineEvent) bool { return e.Event == event }
}

func (p *machineProcess) history() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("rank %d, exited %t:", p.rank, p.exited)
	for _, e := range p.events[max(0, len(p.events)-3):] {
		text += fmt.Sprintf("\n\t%+v", e)
	}

	return text
}

// awaitAll waits until every rank has reported an event for which match returns true.
func (c *cluster) awaitAll(match func(machineEvent) bool) {
	c.t.Helper()
	deadline := time.Now().Add(hangTimeout)
	for _, p := range c.ranks {
		if _, _, ok := p.await(deadline, match); !ok {
			for _, other := range c.ranks {
				c.t.Log(other.history())
			}

			c.t.Fatalf("rank %d did not report the expected event", p.rank)
		}
	}
}

// awaitRounds waits until every rank has completed more rounds than the fastest rank had completed
// when awaitRounds was called.
func (c *cluster) awaitRounds() {
	c.t.Helper()
	reached := 0
	for _, p := range c.ranks {
		p.mu.Lock()
		for _, e := range p.events {
			reached = max(reached, e.Round)
		}

		p.mu.Unlock()
	}

	c.awaitAll(func(e machineEvent) bool {
		return e.Event == eventRounds && e.Round > reached
	})
}

func (c *cluster) finish() {
	c.t.Helper()
	_, _ = io.WriteString(c.ranks[0].input, "finish\n")
	c.awaitAll(func(e machineEvent) bool { return e.Event == eventEnded && e.Kind == "finished" })
}

func (c *cluster) ranksOf(machines ...int) (ranks []int) {
	for _, m := range machines {
		for i := range c.local {
			ranks = append(ranks, m*c.local+i)
		}
	}

	return ranks
}

func (c *cluster) kill(machine int) {
	for _, r := range c.ranksOf(machine) {
		_ = c.ranks[r].command.Process.Kill()
	}
}

// checkLost checks that all ranks on a machine report the ranks on the lost machines as lost,
// and no others, within detectionLimit after begin. The reports must contain the names of the
// lost machines.
func (c *cluster) checkLost(machine int, begin time.Time, lost ...int) {
	c.t.Helper()
	for _, r := range c.ranksOf(machine) {
		if e, ok := c.checkReport(r, begin, lost...); ok && !slices.Equal(e.Ranks, c.ranksOf(lost...)) {
			c.t.Errorf("rank %d reports ranks %v; want ranks %v: %s", r, e.Ranks, c.ranksOf(lost...),
				e.Text)
		}
	}
}

// checkReport checks that within detectionLimit after begin, a rank reports at least one lost
// rank, and only ranks on the lost machines. The report must contain the names of the machines of
// the ranks that it lists.
func (c *cluster) checkReport(r int, begin time.Time, lost ...int) (e machineEvent, ok bool) {
	c.t.Helper()
	p := c.ranks[r]
	e, at, ok := p.await(begin.Add(2*detectionLimit), eventNamed(eventEnded))
	if !ok {
		c.t.Errorf("hung: %s", p.history())
		return e, false
	}

	if e.Kind != "lost" || len(e.Ranks) == 0 {
		c.t.Errorf("rank %d reports %q; want \"lost\": %s", r, e.Kind, e.Text)
		return e, false
	}

	if at.Sub(begin) > detectionLimit {
		c.t.Errorf("rank %d reports after %v; want at most %v", r, at.Sub(begin), detectionLimit)
	}

	for _, other := range e.Ranks {
		machine := c.lab.Machines[other/c.local]
		if !slices.Contains(lost, other/c.local) || !strings.Contains(e.Text, machine.Name) {
			c.t.Errorf("rank %d reports rank %d on %s; want ranks on machines %v, by name: %s", r,
				other, machine.Name, lost, e.Text)
		}
	}

	return e, true
}
