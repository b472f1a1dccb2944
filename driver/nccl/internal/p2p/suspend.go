package p2p

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
)

// Suspender releases and restores the staging memory of a group's messages. This is GPU memory that
// holds messages from the Send until the receiver has copied them. Each segment of it is mapped by
// its owner and by the peers that read it.
type Suspender struct{ Messages *Messages }

// PrepareSuspend returns ErrBusy if a message from or to this rank has not been delivered.
func (s *Suspender) PrepareSuspend() error {
	m := s.Messages
	if m.messagePlane == nil { // the ranks cannot exchange messages
		return nil
	}

	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.InFlight() {
		return fmt.Errorf("a stream has an unfinished message of group %s: %w", m.Config.Name(),
			driver.ErrBusy)
	}

	in := m.inbox
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.readHeaders(); err != nil {
		return err
	}

	// unassigned can contain messages that a Recv has matched. The others are in announcements.
	hasUnmatched := slices.ContainsFunc(in.unassigned, func(a *announcement) bool {
		return in.announcements[a.key()] == a
	})
	hasWaitingRecv := len(in.recvsWithoutMessage) > 0
	hasUnclaimed := len(in.matcher.Unclaimed()) > 0
	if hasUnmatched || hasWaitingRecv || hasUnclaimed {
		return fmt.Errorf("a message of group %s has not been received: %w", m.Config.Name(),
			driver.ErrBusy)
	}

	return nil
}

// Suspend releases this rank's staging memory and unmaps that of its peers. All addresses stay
// reserved. It returns the number of bytes released. Call it after PrepareSuspend has succeeded on
// every rank.
func (s *Suspender) Suspend() (released int64, err error) {
	m := s.Messages
	if m.messagePlane == nil {
		return 0, nil
	}

	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.closed {
		return 0, nil
	}

	peerSegments := slices.Collect(maps.Values(mappedSegments(m.inbox)))
	m.suspended = true
	unmapErr := unmapSegments(m.Device.GPU, peerSegments)
	freeErr := s.freeAll()
	return m.outbox.staging.bytes, errors.Join(unmapErr, freeErr)
}

// freeAll frees this rank's staging memory. The caller must hold Messages.Mu.
func (s *Suspender) freeAll() error {
	m := s.Messages
	staging := &m.outbox.staging
	return m.Device.GPU.Do(func() error {
		return staging.freeSegments(m.Config, len(staging.segments))
	})
}

// Allocate allocates and exports this rank's staging memory again, at its old addresses. On
// failure, none of the memory stays allocated.
func (s *Suspender) Allocate() error {
	m := s.Messages
	if m.messagePlane == nil {
		return nil
	}

	m.Mu.Lock()
	defer m.Mu.Unlock()
	staging := &m.outbox.staging
	return m.Device.GPU.Do(func() error {
		for i, segment := range staging.segments {
			number := i + 1 // segments are numbered from 1
			if err := staging.allocateSegment(m.Config, number, segment); err != nil {
				freeErr := staging.freeSegments(m.Config, i) // those before this segment
				return errors.Join(err, freeErr)
			}
		}

		return nil
	})
}

// Deallocate undoes Allocate. It is called if another rank ran out of memory.
func (s *Suspender) Deallocate() error {
	m := s.Messages
	if m.messagePlane == nil {
		return nil
	}

	m.Mu.Lock()
	defer m.Mu.Unlock()
	return s.freeAll()
}

// MapAgain maps the peers' staging memory at its old addresses. Call it after Allocate has returned
// on all ranks. On failure, none of the memory stays mapped. The caller must hold Messages.Mu.
func (s *Suspender) MapAgain(ctx context.Context) error {
	m := s.Messages
	if m.messagePlane == nil {
		return nil
	}

	callText := "resuming group " + m.Config.Name()
	var mapped []*peerSegment
	for key, segment := range mappedSegments(m.inbox) {
		fetch := func() error {
			_, err := m.Device.Exporter.Fetch(ctx, m.Config.Ranks[key.source],
				stagingKey(m.Config.ID, int(key.number)), segment.bytes, segment.address)
			return err
		}
		err := control.Fetch(ctx, m.Plane, m.Config, key.source, callText, fetch)
		if err != nil {
			unmapErr := unmapSegments(m.Device.GPU, mapped)
			return errors.Join(err, unmapErr)
		}

		mapped = append(mapped, segment)
	}

	m.suspended = false
	return nil
}

// unmapSegments unmaps peers' segments, whose addresses stay reserved.
func unmapSegments(g *gpu.GPU, segments []*peerSegment) error {
	return g.Do(func() error {
		var errs []error
		for _, segment := range segments {
			errs = append(errs, g.CUDA.Unmap(segment.address, segment.bytes))
		}

		return errors.Join(errs...)
	})
}

// mappedSegments returns the peers' segments that this rank has mapped. While the group is
// suspended, these are the segments to map again. The source of a key is a group rank, and the
// number is that of the segment.
func mappedSegments(in *inbox) map[slotKey]*peerSegment {
	in.mu.Lock()
	defer in.mu.Unlock()
	mapped := map[slotKey]*peerSegment{}
	for key, segment := range in.peerSegments {
		if segment.address != 0 {
			mapped[key] = segment
		}
	}

	return mapped
}
