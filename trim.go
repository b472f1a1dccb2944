package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// trimmer implements Pool.Trim: it unmaps segments without buffers.
type trimmer struct {
	mu        *ranked.Spin[poolMu]
	pool      *Pool
	heap      *heap
	segments  *segmentTable
	registrar *registrar
	streams   *streamList
	// removedSegments lists the segments that an earlier trim has removed from the core (the
	// allocator) but not unmapped, because its wait for the streams failed. The next trim unmaps
	// them. Guarded by mu.
	removedSegments []*segment
}

// trim unmaps segments without buffers, but leaves at least minBytes mapped. If the pool has a
// domain (a group whose ranks make the same requests), all ranks of the domain must call it.
func (t *trimmer) trim(ctx context.Context, minBytes int64) error {
	if t.pool.Suspended() {
		return fmt.Errorf("trimming a pool: %w", errPoolSuspended)
	}

	domain := t.registrar.domain
	drainErr := t.streams.drain(ctx)
	// With a domain, an ErrCapturing of this rank must reach all ranks: see agreeOnCaptures below.
	mustShareError := domain != nil && errors.Is(drainErr, ErrCapturing)
	if drainErr != nil && !mustShareError {
		return fmt.Errorf("trimming a pool: %w", drainErr)
	}

	if domain == nil {
		return t.trimWithoutDomain(ctx, minBytes)
	}

	domain.mu.Lock()
	defer domain.mu.Unlock()
	history := t.registrar.history
	err := domain.aligner.realignAndCompare(ctx, &sharedCall{
		tag: "trim", pools: []*Pool{t.pool}, extraReason: hasKeptMemory,
		histories: func() []agreement.Ledger { return []agreement.Ledger{history.with(nil)} },
	})
	if err != nil {
		return err
	}

	if err := agreeOnCaptures(ctx, domain, drainErr); err != nil {
		return fmt.Errorf("trimming a pool: %w", err)
	}

	segments, takeErr := t.takeEmptySegments(ctx, minBytes) // no segments after an error
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	err = errors.Join(takeErr, deregisterErr)
	// Wait for the other ranks, even after an error: they may read a segment until they have
	// deregistered it.
	if _, waitErr := domain.comm.Exchange(ctx, driver.LaneControl, nil); waitErr != nil {
		cause := domain.life.awaitFault(waitErr)
		return errors.Join(err, cause)
	}

	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(err, unmapErr)
}

// hasKeptMemory reports whether another realignment may free memory of the pool. A realignment
// (after a fault) keeps memory that CUDA graphs use on some rank: no new buffer can use it until
// the next realignment.
func hasKeptMemory(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.HasKeptMemory()
}

func (t *trimmer) trimWithoutDomain(ctx context.Context, minBytes int64) error {
	segments, takeErr := t.takeEmptySegments(ctx, minBytes) // no segments after an error
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(takeErr, deregisterErr, unmapErr)
}

// takeEmptySegments removes the segments without buffers from the core, waits for all streams, and
// returns the segments. The wait is for work that another goroutine has queued, before it freed
// the buffers, since the caller's wait. If the wait fails, the next trim unmaps the segments.
func (t *trimmer) takeEmptySegments(ctx context.Context, minBytes int64) ([]*segment, error) {
	segments := t.removeEmptySegments(minBytes)
	if len(segments) == 0 {
		return nil, nil
	}

	if err := t.streams.drain(ctx); err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.removedSegments = append(t.removedSegments, segments...)
		return nil, fmt.Errorf("trimming a pool: %w", err)
	}

	return segments, nil
}

// removeEmptySegments removes the segments without buffers from the core, so that they can no
// longer be registered. It returns them together with t.removedSegments, ordered by ordinal.
func (t *trimmer) removeEmptySegments(minBytes int64) []*segment {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.segments.closed {
		return nil
	}

	const noSite = 0 // the history does not record which code called trim
	segments := t.removedSegments
	t.removedSegments = nil
	for _, trimmed := range t.heap.core.Trim(minBytes) {
		s := t.segments.list[trimmed.Ordinal]
		s.withdraw()
		segments = append(segments, s)
		t.heap.ledger.Append(&event.Event{
			Kind: event.KindTrim, Stream: s.stream, Segment: s.ordinal, Size: trimmed.Bytes,
		}, noSite)
	}

	slices.SortFunc(segments, compareOrdinals)
	return segments
}
