package nccl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// held are two ranks with a call over each other's buffers, which waits on some of them behind a
// host function.
type held struct {
	*team
	powers [2]*power
	gate   chan struct{}
	// passed is closed, by rank, once the call has ended.
	passed [2]chan struct{}
}

// heldCount makes 12 MiB, which go over the buffers.
const heldCount = 3 << 20

// hold queues such a call.
func hold(t *testing.T, timeout time.Duration, behind ...int) *held {
	t.Helper()
	h := &held{team: newTeam(t, 2, timeout), gate: make(chan struct{})}
	h.play(0, 1)
	needDirect(t, h.mates[0].group)
	h.must(func(m *mate) (err error) {
		if h.powers[m.rank], err = m.newPower(h.team, 1, heldCount); err != nil {
			return err
		}
		passed := make(chan struct{})
		h.passed[m.rank] = passed
		if slices.Contains(behind, m.rank) {
			err = m.stream.Host(func() { <-h.gate })
		}
		return errors.Join(err, h.powers[m.rank].raise(m.group, m.stream, driver.PathDirect),
			m.stream.Host(func() { close(passed) }))
	})
	return h
}

// release lets the calls run, and waits until they have ended on some ranks.
func (h *held) release(ranks ...int) {
	h.t.Helper()
	close(h.gate)
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	for _, r := range ranks {
		select {
		case <-h.passed[r]:
		case <-ctx.Done():
			h.t.Fatalf("rank %d: the call does not end", r)
		}
	}
}

// closeStream closes a rank's stream, which has work that does not end in time.
func (m *mate) closeStream() error {
	err := m.stream.Close()
	m.stream = nil
	m.pinned = nil // CUDA waits for the whole device before it takes such memory back
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("closing the stream gave %w, want that its work has not ended", err)
	}
	return nil
}

// kept returns an error unless another one tells that memory is kept.
func kept(err error) error {
	if err == nil || !strings.Contains(err.Error(), "until the process ends") {
		return fmt.Errorf("got %w, want that memory stays mapped", err)
	}
	return nil
}

// forget ends the use of ranks that were closed.
func (h *held) forget(mates ...*mate) {
	for _, m := range mates {
		*m = mate{number: m.number}
	}
}

// TestNothingIsUnmappedUnderWorkOfAClosedStream closes everything while calls are yet to come,
// which then read and write the memory of both ranks.
func TestNothingIsUnmappedUnderWorkOfAClosedStream(t *testing.T) {
	if !apart(t, "") {
		return
	}
	h := hold(t, 500*time.Millisecond, 0, 1)
	h.must((*mate).closeStream)
	errs := h.each((*mate).close)
	h.forget(h.mates...)
	h.release(0, 1)
	for r, err := range errs {
		if err := kept(err); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestWorkOfAClosedStreamThatEndsKeepsNothing: what has ended when memory is given back does not
// count.
func TestWorkOfAClosedStreamThatEndsKeepsNothing(t *testing.T) {
	if !apart(t, "") {
		return
	}
	h := hold(t, 500*time.Millisecond, 0, 1)
	streams := []driver.Stream{h.mates[0].stream, h.mates[1].stream}
	h.must((*mate).closeStream)
	h.release(0, 1)
	h.must(func(m *mate) error { return streams[m.rank].Synchronize(t.Context()) })
	h.must((*mate).close)
	h.forget(h.mates...)
}

// TestPeersStayMappedUnderWorkThatOutlivesItsGroup: a kernel that comes when its group has failed
// finds that its peer was there, and reads that one's memory.
func TestPeersStayMappedUnderWorkThatOutlivesItsGroup(t *testing.T) {
	if !apart(t, "") {
		return
	}
	h := hold(t, time.Minute, 0)
	late, early := h.mates[0], h.mates[1]
	early.group.Abort(errGivenUp)
	if err := early.stream.Synchronize(t.Context()); !errors.Is(err, errGivenUp) {
		t.Fatalf("got %v, want what the rank has given up with", err)
	}
	select {
	case <-late.group.Failed():
	case <-time.After(20 * time.Second):
		t.Fatal("the group does not fail on the other rank")
	}
	err := late.owned[0].window.Deregister()
	h.release(0)
	if err := kept(err); err != nil {
		t.Error(err)
	}
	late.owned[0].window = nil
	if err := kept(late.close()); err != nil {
		t.Error(err)
	}
	h.forget(late)
}

// TestALaunchThatOutlivesItsGraphEnds: its host functions are there when the stream comes to them.
func TestALaunchThatOutlivesItsGraphEnds(t *testing.T) {
	w := newTeam(t, 1, 500*time.Millisecond)
	s, gate, ran := w.mates[0].stream, make(chan struct{}), make(chan struct{})
	if err := errors.Join(s.BeginCapture(), s.Host(func() { close(ran) })); err != nil {
		t.Fatal(err)
	}
	g, err := s.EndCapture()
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(s.Host(func() { <-gate }), g.Launch(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing the graph gave %v, want that its launch has not ended", err)
	}
	close(gate)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Synchronize(ctx); err != nil {
		w.mates[0].pinned = nil
		t.Fatal(err)
	}
	<-ran
}
