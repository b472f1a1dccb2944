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

// Suspending a group frees a part of its GPU memory for a while. This includes staging memory,
// which holds messages from the Send until the receiver has copied them. Staging memory consists of
// segments. Rank 0 allocates and maps its own segments, and it also maps segments of rank 1, from
// which it copies messages. The steps are:
//
//   - PrepareSuspend checks that no messages are left.
//   - Suspend unmaps and frees the memory, once PrepareSuspend has succeeded on all ranks. The
//     addresses stay reserved.
//   - Allocate allocates the memory again, at the same addresses. If it fails on a rank, the other
//     ranks undo it by Deallocate.
//   - MapAgain maps the segments of other ranks at the same addresses, once Allocate has succeeded
//     on all ranks.

// Suspender suspends and resumes the staging memory of a group. All its methods do nothing if the
// ranks cannot exchange messages.
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

// hasUndelivered reports whether a message has no Recv, or a Recv has not accepted its message. The
// caller must hold in.mu.
func hasUndelivered(in *inbox) bool {
	if len(in.recvsWithoutMessage) > 0 {
		return true
	}

	// The inbox passes some messages to the matcher, which assigns them to Recvs.
	if len(in.matcher.Unclaimed()) > 0 {
		return true
	}

	// The other messages are in unassigned. Those that have a Recv meanwhile are not in announcements.
	return slices.ContainsFunc(in.unassigned, func(a *announcement) bool {
		return in.announcements[a.key()] == a
	})
}

// Suspend frees this rank's staging memory and unmaps that of other ranks. It returns the number of
// bytes freed.
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
	freeErr := s.freeAll()
	return m.outbox.staging.bytes, errors.Join(unmapErr, freeErr)
}

// mappedSegments returns the segments of other ranks that this rank has mapped. While the group is
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

// unmapSegments unmaps segments of other ranks. Their addresses stay reserved.
func unmapSegments(g *gpu.GPU, segments []*peerSegment) error {
	return g.Do(func() error {
		var errs []error
		for _, segment := range segments {
			errs = append(errs, g.CUDA.Unmap(segment.address, segment.bytes))
		}

		return errors.Join(errs...)
	})
}

// freeAll frees this rank's staging memory. The caller must hold Messages.Mu.
func (s *Suspender) freeAll() error {
	m := s.Messages
	staging := &m.outbox.staging
	return m.Device.GPU.Do(func() error {
		return staging.freeSegments(m.Config, len(staging.segments))
	})
}

// Allocate allocates this rank's staging memory again, so that other ranks can map it. On failure,
// none of the memory stays allocated.
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
	if !m.Available() {
		return nil
	}

	m.Mu.Lock()
	defer m.Mu.Unlock()
	return s.freeAll()
}

// MapAgain maps the staging memory of other ranks again. On failure, none of it stays mapped. The
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

// mapSegmentAgain maps a segment of another rank at its reserved address.
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
