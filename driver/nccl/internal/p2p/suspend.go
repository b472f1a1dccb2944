package p2p

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
)

// Suspender releases and restores the staging memory of a group's messages.
type Suspender struct{ Messages *Messages }

// PrepareSuspend returns ErrBusy if a message from or to this rank has not been delivered.
func (s *Suspender) PrepareSuspend() error {
	m := s.Messages
	if m.messagePlane == nil {
		return nil
	}
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.InFlight() {
		return fmt.Errorf("a stream has an unfinished message of group %s: %w", m.Config.Name(),
			driver.ErrBusy)
	}
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	if err := m.inbox.readHeaders(); err != nil {
		return err
	}
	hasUnmatched := slices.ContainsFunc(m.inbox.unassigned, func(a *announcement) bool {
		return m.inbox.announcements[a.key()] == a // otherwise, a Recv has matched a
	})
	if hasUnmatched || len(m.inbox.recvsWithoutMessage) > 0 || len(m.inbox.matcher.Unclaimed()) > 0 {
		return fmt.Errorf("a message of group %s has not been received: %w", m.Config.Name(),
			driver.ErrBusy)
	}
	return nil
}

// Suspend releases this rank's staging memory, unmaps that of its peers and returns the number of
// bytes released. All addresses stay reserved. PrepareSuspend must have succeeded on every rank.
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
	peers := listMappedSegments(m.inbox)
	m.suspended = true
	g := m.Device.GPU
	err = g.Do(func() error {
		var errs []error
		for _, segment := range peers {
			errs = append(errs, g.CUDA.Unmap(segment.address, segment.bytes))
		}
		return errors.Join(append(errs,
			m.outbox.staging.freeSegments(m.Config, len(m.outbox.staging.segments)))...)
	})
	return m.outbox.staging.bytes, err
}

// Allocate allocates and exports the staging memory again, at its old addresses. On failure, none
// of the memory stays allocated.
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
			if err := staging.allocateSegment(m.Config, i+1, segment); err != nil {
				return errors.Join(err, staging.freeSegments(m.Config, i))
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
	return m.Device.GPU.Do(func() error {
		return m.outbox.staging.freeSegments(m.Config, len(m.outbox.staging.segments))
	})
}

// MapAgain maps the peers' staging memory at its old addresses, after Allocate has returned on all
// ranks. On failure, none of the memory stays mapped. The caller must hold Messages.Mu.
func (s *Suspender) MapAgain(ctx context.Context) error {
	m := s.Messages
	if m.messagePlane == nil {
		return nil
	}
	var mapped []*peerSegment
	for key, segment := range listMappedSegments(m.inbox) {
		err := control.Fetch(ctx, m.Plane, m.Config, key.source,
			"resuming group "+m.Config.Name(), func() error {
				_, err := m.Device.Exporter.Fetch(ctx, m.Config.Ranks[key.source],
					stagingKey(m.Config.ID, int(key.number)), segment.bytes, segment.address)
				return err
			})
		if err != nil {
			return errors.Join(err, unmapSegments(m.Device.GPU, mapped))
		}
		mapped = append(mapped, segment)
	}
	m.suspended = false
	return nil
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

// listMappedSegments returns the peers' segments that this rank maps unless it is suspended.
func listMappedSegments(in *inbox) map[slotKey]*peerSegment {
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
