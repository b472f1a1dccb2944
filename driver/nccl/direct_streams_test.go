package nccl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// odd opens a team of three ranks, whose powers stay odd, or of two that step.
func odd(t *testing.T) *team {
	t.Helper()
	all := []int{0, 1, 2}[:atMost(t, 3)]
	w := newTeam(t, len(all), time.Minute)
	w.steps = len(all) == 2
	w.play(all...)
	return w
}

// TestStreamsTakeTurns launches on several streams of a rank without an event between them: calls
// of one group run one after the other whatever stream they are on.
func TestStreamsTakeTurns(t *testing.T) {
	w := odd(t)
	w.must(func(m *mate) error {
		p, err := m.newPower(w, 1, 1000)
		if err != nil {
			return err
		}
		streams := []driver.Stream{m.stream}
		for range 2 {
			s, err := m.device.NewStream()
			if err != nil {
				return err
			}
			defer s.Close()
			streams = append(streams, s)
		}
		for i := range 300 {
			// Ranks take their streams in orders of their own.
			if err := p.raise(m.group, streams[(i+i/7*m.rank)%3], driver.PathDirect); err != nil {
				return err
			}
		}
		return m.check(w, p, streams...)
	})
}

// TestACaptureDoesNotEndTheOrderOfStreams launches on a busy stream that has captured since its
// last launch, and then on another one: that launch still runs second.
func TestACaptureDoesNotEndTheOrderOfStreams(t *testing.T) {
	w := odd(t)
	w.must(func(m *mate) error {
		p, err := m.newPower(w, 1, 1000)
		if err != nil {
			return err
		}
		second, err := m.device.NewStream()
		if err != nil {
			return err
		}
		defer second.Close()
		err = p.raise(m.group, m.stream, driver.PathDirect)
		_, failed := m.capture(p, 1)
		end, busy := m.occupy(m.stream.(*stream.Stream).CUDA)
		if err = errors.Join(err, failed, busy); err != nil {
			return err
		}
		err = errors.Join(p.raise(m.group, m.stream, driver.PathDirect),
			p.raise(m.group, second, driver.PathDirect))
		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err == nil && gpu.Poll(soon, second.(*stream.Stream).Idle) == nil {
			err = errors.New("the second launch has run, and the first has not")
		}
		return errors.Join(err, end(), m.check(w, p, m.stream, second))
	})
}

// TestPathsMix takes all paths in turn over the same memory.
func TestPathsMix(t *testing.T) {
	w := odd(t)
	w.must(func(m *mate) error {
		p, err := m.newPower(w, 1, 5000)
		for i := range 200 {
			if err == nil {
				err = p.raise(m.group, m.stream, driver.Path(i%int(driver.Paths)))
			}
		}
		return errors.Join(err, m.check(w, p, m.stream))
	})
}

// TestPathsTakeTurns launches on a busy stream, and then on another one on another path. The second
// call runs second: kernels of NCCL and of ours may be too large to run side by side, and ranks
// that run them in different orders would wait for each other. Our graphs keep the order, too.
func TestPathsTakeTurns(t *testing.T) {
	w := odd(t)
	w.must(func(m *mate) error {
		other, err := m.device.NewStream()
		if err != nil {
			return err
		}
		defer other.Close()
		var powers [2]*power
		for i := range powers {
			if powers[i], err = m.newPower(w, uint32(i+1), 1000); err != nil {
				return err
			}
			for path := range driver.Paths { // NCCL connects at the first call
				err = errors.Join(err, powers[i].raise(m.group, m.stream, path))
			}
		}
		recorded, failed := m.capture(powers[1], 1)
		if err = errors.Join(err, failed, m.check(w, powers[0], m.stream)); err != nil {
			return err
		}
		for path := range driver.Paths {
			for second := range driver.Paths + 1 {
				second := func() error {
					if second == driver.Paths {
						return powers[1].replay(m, recorded, other, 1)
					}
					return powers[1].raise(m.group, other, second)
				}
				first := func() error { return powers[0].raise(m.group, m.stream, path) }
				err := m.inOrder(m.stream.(*stream.Stream).CUDA, first, other.(*stream.Stream).CUDA, second)
				if err != nil {
					return fmt.Errorf("path %v and then another call: %w", path, err)
				}
			}
		}
		return errors.Join(m.check(w, powers[0], m.stream), m.check(w, powers[1], other))
	})
}

// TestPathsTakeTurnsWithReplays does the same with graphs of another library.
func TestPathsTakeTurnsWithReplays(t *testing.T) {
	w := odd(t)
	w.must(func(m *mate) error {
		var powers [2]*power
		var err error
		for i := range powers {
			if powers[i], err = m.newPower(w, uint32(i+1), 1000); err != nil {
				return err
			}
			for path := range driver.Paths { // NCCL connects at the first call
				err = errors.Join(err, powers[i].raise(m.group, m.stream, path))
			}
		}
		all, failed := m.newOwned(int(driver.Paths))
		err = errors.Join(err, failed)
		for path, o := range all {
			err = errors.Join(err, o.capture(func() error {
				return o.record(driver.Path(path), powers[0])
			}))
		}
		ours := m.stream.(*stream.Stream).CUDA
		for path, o := range all {
			for second := range driver.Paths {
				replay := func() error { return o.replay(powers[0]) }
				call := func() error { return powers[1].raise(m.group, m.stream, second) }
				err = errors.Join(err, m.inOrder(o.theirs, replay, ours, call),
					m.inOrder(ours, call, o.theirs, replay))
				if err != nil {
					return fmt.Errorf("a graph of path %v and a call of %v: %w", driver.Path(path), second, err)
				}
			}
		}
		return errors.Join(finish(all...), m.check(w, powers[0], m.stream),
			m.check(w, powers[1], m.stream))
	})
}

// inOrder makes a call on a stream that is kept busy, and then another one on another stream. It
// waits for both, and returns an error if the second has run first.
func (m *mate) inOrder(
	on cuda.Stream, first func() error, other cuda.Stream, second func() error,
) error {
	idle := func(s cuda.Stream) func() (bool, error) {
		return func() (done bool, err error) {
			err = m.device.gpu.Do(func() error { done, err = m.device.gpu.CUDA.StreamQuery(s); return err })
			return done, err
		}
	}
	end, err := m.occupy(on)
	err = errors.Join(err, first(), second())
	if err == nil && gpu.Within(20*time.Millisecond, idle(other)) == nil {
		err = errors.New("the second call has run, and the first has not")
	}
	return errors.Join(err, end(), gpu.Within(time.Minute, idle(on)),
		gpu.Within(time.Minute, idle(other)))
}

// TestEagerAndCapturedCallsMix replays a graph of calls in lines 1,000 times, with eager calls in
// between. Now and then it also replays a graph of a call over the buffers of peers, which takes
// the software GPU long.
func TestEagerAndCapturedCallsMix(t *testing.T) {
	const replays = 1000
	calls := []int{3, 1}
	w := odd(t)
	w.must(func(m *mate) error {
		var powers [2]*power
		var graphs [2]driver.Graph
		for i, count := range []int64{500, sizes["buffers"]} {
			var err error
			if powers[i], err = m.newPower(w, uint32(i+1), count); err != nil {
				return err
			}
			if graphs[i], err = m.capture(powers[i], calls[i]); err != nil {
				return err
			}
		}
		other, err := m.device.NewStream()
		if err != nil {
			return err
		}
		defer other.Close()
		for i := range replays {
			on := []driver.Stream{m.stream, other}[i/10%2]
			err := powers[0].replay(m, graphs[0], on, calls[0])
			if err == nil && i%3 == 0 {
				err = powers[0].raise(m.group, on, driver.PathDirect)
			}
			if err == nil && i%100 == 55 {
				err = powers[1].replay(m, graphs[1], on, calls[1])
			}
			if err != nil {
				return fmt.Errorf("replay %d: %w", i, err)
			}
		}
		return errors.Join(m.check(w, powers[0], m.stream, other), m.check(w, powers[1], m.stream))
	})
}

// capture records calls of the group, which do not run. The graph is the rank's.
func (m *mate) capture(p *power, calls int) (driver.Graph, error) {
	want := p.want
	defer func() { p.want = want }()
	err := m.stream.BeginCapture()
	for range calls {
		err = errors.Join(err, p.raise(m.group, m.stream, driver.PathDirect))
	}
	g, end := m.stream.EndCapture()
	if end == nil {
		m.graphs = append(m.graphs, g)
	}
	return g, errors.Join(err, end)
}

// TestLargeCallsAreCaptured: those over the buffers of peers.
func TestLargeCallsAreCaptured(t *testing.T) {
	w := odd(t)
	w.must(func(m *mate) error {
		p, err := m.newPower(w, 1, sizes["buffers"])
		if err != nil {
			return err
		}
		g, err := m.capture(p, 2)
		if err != nil {
			return err
		}
		for range 3 {
			err = errors.Join(err, p.replay(m, g, m.stream, 2),
				p.raise(m.group, m.stream, driver.PathDirect))
		}
		return errors.Join(err, m.check(w, p, m.stream))
	})
}

// TestGroupsWorkAtOnce launches in two groups of the same ranks, each on a stream of its own, in
// orders that differ from rank to rank.
func TestGroupsWorkAtOnce(t *testing.T) {
	const rounds = 200
	w := odd(t)
	w.must(func(m *mate) error {
		groups, last := []driver.Communicator{m.group}, len(w.playing)-1
		second, err := m.device.Connect(t.Context(), driver.GroupConfig{
			ID: "second", Ranks: append([]int{last}, []int{0, 1}[:last]...),
			Rank: (m.rank + 1) % len(w.playing), Check: ofOneMachine(),
		})
		if err != nil {
			return err
		}
		groups = append(groups, second)
		powers, streams := make([]*power, 2), []driver.Stream{m.stream, nil}
		if streams[1], err = m.device.NewStream(); err != nil {
			return err
		}
		first := m.group
		for i, g := range groups {
			m.group = g
			powers[i], err = m.newPower(w, uint32(i+1), 700)
			if err != nil {
				return err
			}
		}
		m.group = first
		for round := range rounds {
			for i := range groups {
				at := (i + round*m.rank) % len(groups)
				if err := powers[at].raise(groups[at], streams[at], driver.PathDirect); err != nil {
					return err
				}
			}
		}
		for _, p := range powers {
			err = errors.Join(err, m.check(w, p, streams...))
		}
		err = errors.Join(err, powers[1].window.Deregister(), streams[1].Close(), second.Close())
		powers[1].window = nil
		return err
	})
}

// TestStreamsOfOthersTakeTurns launches on streams of another library, and on one of our own, also
// while their owner captures them.
func TestStreamsOfOthersTakeTurns(t *testing.T) {
	w := odd(t)
	w.must(func(m *mate) error {
		p, err := m.newPower(w, 1, 1000)
		if err != nil {
			return err
		}
		theirs, adopted, err := m.adopt(2)
		if err != nil {
			return err
		}
		streams := append(slices.Clone(adopted), m.stream)
		for i := range 100 {
			if err := p.raise(m.group, streams[i%len(streams)], driver.PathDirect); err != nil {
				return err
			}
		}
		if err := m.check(w, p, streams...); err != nil {
			return err
		}
		// When the group is closed later, CUDA must not be asked about streams that are destroyed.
		err = errors.Join(m.replayOwned(w, p, theirs[0], adopted[0]),
			adopted[0].Close(), adopted[1].Close())
		return errors.Join(err, m.device.destroy(theirs[0]), m.device.destroy(theirs[1]))
	})
}

// adopt makes streams as another library does, and adopts them.
func (m *mate) adopt(n int) (theirs []cuda.Stream, adopted []driver.Stream, err error) {
	for range n {
		handle, s, err := m.device.foreign()
		if err != nil {
			return nil, nil, err
		}
		theirs, adopted = append(theirs, handle), append(adopted, s)
	}
	return theirs, adopted, nil
}

// foreign makes a stream as another library does, and adopts it.
func (d *Device) foreign() (theirs cuda.Stream, adopted *stream.Stream, err error) {
	err = d.gpu.Do(func() (err error) {
		theirs, err = d.gpu.CUDA.StreamCreate(true)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	s, err := d.AdoptStream(uintptr(theirs))
	if err != nil {
		return 0, nil, err
	}
	return theirs, s.(*stream.Stream), nil
}

// destroy ends a stream as its owner does.
func (d *Device) destroy(theirs cuda.Stream) error {
	return d.gpu.Do(func() error { return d.gpu.CUDA.StreamDestroy(theirs) })
}

// replayOwned puts calls into a capture of the stream's owner, and replays its graph.
func (m *mate) replayOwned(w *team, p *power, theirs cuda.Stream, s driver.Stream) error {
	plan, err := prepare(m.group, p.call(driver.PathDirect))
	if err != nil {
		return err
	}
	d, recorder := m.device, m.group.(driver.Recorder)
	var exec cuda.GraphExec
	graph, err := m.device.recordBy(theirs, func() error {
		return errors.Join(recorder.Record(s, plan), recorder.Record(s, plan))
	})
	if err != nil {
		return err
	}
	err = d.gpu.Do(func() (err error) {
		exec, err = d.gpu.CUDA.GraphInstantiate(graph)
		return err
	})
	if err != nil {
		return err
	}
	for range 50 {
		p.ran(m.group.(*communicator), 2)
		err = errors.Join(err, d.gpu.Do(func() error { return d.gpu.CUDA.GraphLaunch(exec, theirs) }),
			p.raise(m.group, s, driver.PathDirect))
	}
	return errors.Join(err, m.check(w, p, s), d.gpu.Do(func() error {
		return errors.Join(d.gpu.CUDA.GraphExecDestroy(exec), d.gpu.CUDA.GraphDestroy(graph))
	}))
}
