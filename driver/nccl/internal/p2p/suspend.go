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

// Suspender temporarily frees a group's staging memory, in which messages wait until receivers have
// copied them. The addresses stay reserved. The steps are PrepareSuspend, Suspend, Allocate and
// MapAgain. Each step begins after the previous one has succeeded on all ranks. All methods do
// nothing if the ranks cannot exchange messages.
type Suspender struct{ Messages *Messages }

// PrepareSuspend returns ErrBusy if a message from or to this rank has not been delivered.
func (s *Suspender) PrepareSuspend() error {
	m := s.Messages
	if !m.Available() {
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

	if hasUndelivered(in) {
		return fmt.Errorf("a message of group %s has not been received: %w", m.Config.Name(),
			driver.ErrBusy)
	}

	return nil
}

// hasUndelivered reports whether a message or a Recv is waiting for its counterpart. The caller
// must hold in.mu.
func hasUndelivered(in *inbox) bool {
	if len(in.recvsWithoutMessage) > 0 {
		return true
	}

	if len(in.matcher.Unclaimed()) > 0 {
		return true
	}

	return slices.ContainsFunc(in.unassigned, func(a *announcement) bool {
		hasRecv := in.announcements[a.key()] != a
		return !hasRecv
	})
}

// Suspend frees this rank's staging memory and unmaps the segments of other ranks. It returns the
// number of bytes freed.
func (s *Suspender) Suspend() (freed int64, err error) {
	m := s.Messages
	if !m.Available() {
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
	freeErr := s.freeStaging()
	return m.outbox.staging.bytes, errors.Join(unmapErr, freeErr)
}

// mappedSegments returns the segments of other ranks that have an address in this process. While
// the group is suspended, these are the segments to map again.
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

func unmapSegments(g *gpu.GPU, segments []*peerSegment) error {
	return g.Do(func() error {
		var errs []error
		for _, segment := range segments {
			errs = append(errs, g.CUDA.Unmap(segment.address, segment.bytes))
		}

		return errors.Join(errs...)
	})
}

// freeStaging frees this rank's staging memory. The caller must hold Messages.Mu.
func (s *Suspender) freeStaging() error {
	m := s.Messages
	staging := &m.outbox.staging
	return m.Device.GPU.Do(func() error {
		return staging.freeSegments(m.Config, len(staging.segments))
	})
}

// Allocate allocates this rank's staging memory again. After an error, none of it is allocated.
func (s *Suspender) Allocate() error {
	m := s.Messages
	if !m.Available() {
		return nil
	}

	m.Mu.Lock()
	defer m.Mu.Unlock()
	staging := &m.outbox.staging
	return m.Device.GPU.Do(func() error {
		for i, segment := range staging.segments {
			number := i + 1 // segments are numbered from 1
			if err := staging.allocateSegment(m.Config, number, segment); err != nil {
				countBefore := i // segments before the failed one
				freeErr := staging.freeSegments(m.Config, countBefore)
				return errors.Join(err, freeErr)
			}
		}

		return nil
	})
}

// Deallocate undoes Allocate if Allocate has failed on another rank.
func (s *Suspender) Deallocate() error {
	m := s.Messages
	if !m.Available() {
		return nil
	}

	m.Mu.Lock()
	defer m.Mu.Unlock()
	return s.freeStaging()
}

// MapAgain maps the segments of other ranks again. After an error, none of them is mapped. The
// caller must hold Messages.Mu.
func (s *Suspender) MapAgain(ctx context.Context) error {
	m := s.Messages
	if !m.Available() {
		return nil
	}

	var mapped []*peerSegment
	for key, segment := range mappedSegments(m.inbox) {
		if err := mapSegmentAgain(ctx, m, key, segment); err != nil {
			unmapErr := unmapSegments(m.Device.GPU, mapped)
			return errors.Join(err, unmapErr)
		}

		mapped = append(mapped, segment)
	}

	m.suspended = false
	return nil
}

func mapSegmentAgain(
	ctx context.Context, m *Messages, key slotKey, segment *peerSegment,
) error {
	callText := "resuming group " + m.Config.Name()
	return control.Fetch(ctx, m.Plane, m.Config, key.source, callText, func() error {
		_, err := m.Device.Exporter.Fetch(ctx, m.Config.Ranks[key.source],
			stagingKey(m.Config.ID, int(key.number)), segment.bytes, segment.address)
		return err
	})
}
