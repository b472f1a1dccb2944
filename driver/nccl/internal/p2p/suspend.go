package p2p

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"symmem/driver"
)

// Suspender temporarily frees the memory of a group's messages, and keeps the addresses of the
// memory. The steps are PrepareSuspend, Suspend, Allocate and MapAgain. Each step begins after the
// previous one has succeeded on all ranks. Methods do nothing unless Messages.Available.
type Suspender struct{ Messages *Messages }

// PrepareSuspend returns ErrBusy unless all messages from and to this rank have been received.
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

// hasUndelivered reports whether a Recv lacks its message, or a message its Recv. The caller must
// hold in.mu.
func hasUndelivered(in *inbox) bool {
	if len(in.recvsWithoutMessage) > 0 {
		return true
	}

	if len(in.matcher.Unclaimed()) > 0 {
		return true
	}

	lacksRecv := func(a *announcement) bool { return in.announcements[a.key()] == a }
	return slices.ContainsFunc(in.unassigned, lacksRecv)
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

	peerSegments := slices.Collect(maps.Values(m.inbox.segmentsWithAddress()))
	m.suspended = true
	unmapErr := unmapSegments(m.Device.GPU, peerSegments)
	freeErr := s.freeStaging()
	return m.outbox.staging.bytes, errors.Join(unmapErr, freeErr)
}

// freeStaging frees all staging memory. The caller must hold Messages.Mu.
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
				freeErr := staging.freeSegments(m.Config, i)
				return errors.Join(err, freeErr)
			}
		}

		return nil
	})
}

// Deallocate undoes Allocate after Allocate has failed on another rank.
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
	for key, segment := range m.inbox.segmentsWithAddress() {
		if err := m.inbox.mapSegmentAgain(ctx, key, segment); err != nil {
			unmapErr := unmapSegments(m.Device.GPU, mapped)
			return errors.Join(err, unmapErr)
		}

		mapped = append(mapped, segment)
	}

	m.suspended = false
	return nil
}
