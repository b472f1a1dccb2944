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

// Trim waits for all queued work, which may still use freed buffers, and removes the segments
// without buffers from the core, the pool's allocator. It waits again, because a buffer may have
// been allocated, used and freed in the meantime. Then it deregisters and unmaps the segments. The
// ranks of a domain, a group that keeps its pools identical, unmap only after all of them have
// deregistered, because until then they may access the segments of each other.

// trimmer implements Pool.Trim.
type trimmer struct {
	mu        *ranked.Spin[poolMu]
	pool      *Pool
	heap      *heap
	segments  *segmentTable
	registrar *registrar
	streams   *streamList
	// removedSegments are left over from a trim whose second wait failed, for the next trim to unmap.
	// Guarded by mu.
	removedSegments []*segment
}

// trim leaves at least minBytes mapped. All ranks of the pool's domain, if any, must call it.
func (t *trimmer) trim(ctx context.Context, minBytes int64) error {
	if t.pool.Suspended() {
		return trimError(errPoolSuspended)
	}

	drainErr := t.streams.drain(ctx)
	isCapturing := errors.Is(drainErr, ErrCapturing)
	if drainErr != nil && !isCapturing {
		return trimError(drainErr)
	}

	if domain := t.registrar.domain; domain != nil {
		return t.trimWithDomain(ctx, domain, minBytes, drainErr)
	}

	if isCapturing {
		return trimError(drainErr)
	}

	return t.trimWithoutDomain(ctx, minBytes)
}

func trimError(err error) error { return fmt.Errorf("trimming a pool: %w", err) }

func (t *trimmer) trimWithoutDomain(ctx context.Context, minBytes int64) error {
	segments, takeErr := t.takeEmptySegments(ctx, minBytes)
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(takeErr, deregisterErr, unmapErr)
}

// trimWithDomain trims the pool together with the other ranks of the domain. If a capture prevents
// a rank from trimming, it passes captureErr, an ErrCapturing, and all ranks return ErrCapturing.
func (t *trimmer) trimWithDomain(
	ctx context.Context, domain *Group, minBytes int64, captureErr error,
) error {
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

	if err := agreeOnCaptures(ctx, domain, captureErr); err != nil {
		return trimError(err)
	}

	segments, takeErr := t.takeEmptySegments(ctx, minBytes)
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	err = errors.Join(takeErr, deregisterErr)
	// This exchange is a barrier: all ranks have deregistered the segments, even after an error. If
	// it fails, so does the domain, and the segments stay mapped until Close.
	if _, waitErr := domain.comm.Exchange(ctx, driver.LaneControl, nil); waitErr != nil {
		cause := domain.life.awaitFault(waitErr)
		return errors.Join(err, cause)
	}

	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(err, unmapErr)
}

// hasKeptMemory reports whether the latest realignment, which gave the pool the same layout on all
// ranks, had to keep memory for a CUDA graph. Another realignment may free that memory.
func hasKeptMemory(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.HasKeptMemory()
}

// takeEmptySegments calls removeEmptySegments, waits for all streams, and returns the segments.
func (t *trimmer) takeEmptySegments(ctx context.Context, minBytes int64) ([]*segment, error) {
	segments := t.removeEmptySegments(minBytes)
	if len(segments) == 0 {
		return nil, nil
	}

	if err := t.streams.drain(ctx); err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.removedSegments = append(t.removedSegments, segments...)
		return nil, trimError(err)
	}

	return segments, nil
}

// removeEmptySegments removes the segments without buffers from the core. It returns them and
// t.removedSegments, sorted by ordinal.
func (t *trimmer) removeEmptySegments(minBytes int64) []*segment {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.segments.closed {
		return nil
	}

	const noSite = 0 // the ledger does not record the call site of a trim
	segments := t.removedSegments
	t.removedSegments = nil
	for _, trimmed := range t.heap.core.Trim(minBytes) {
		s := t.segments.list[trimmed.Ordinal]
		s.withdraw() // groups may no longer register it
		segments = append(segments, s)
		t.heap.ledger.Append(&event.Event{
			Kind: event.KindTrim, Stream: s.stream, Segment: s.ordinal, Size: trimmed.Bytes,
		}, noSite)
	}

	slices.SortFunc(segments, compareOrdinals)
	return segments
}
