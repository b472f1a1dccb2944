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

// Suppose that a pool has mapped three segments, and that no buffer lies in segment 2. Trim unmaps
// segment 2 in these steps:
//
//   - It waits for the queued work of all streams, which may still use freed buffers.
//   - It removes the segment from the core, the pool's allocator. From then on, no buffer can be
//     placed there, and groups register the segment no more.
//   - It waits again: in the meantime, another goroutine may have queued work on a buffer in the
//     segment, and freed the buffer.
//   - It deregisters the segment from the groups that have registered it.
//   - It unmaps the segment.
//
// A pool can belong to a domain: a group whose ranks make the same requests to the pool. The ranks
// then trim the same segments together. A rank unmaps them only when all ranks have deregistered
// them, because other ranks may read its memory until then.

// trimmer implements Pool.Trim.
type trimmer struct {
	mu        *ranked.Spin[poolMu]
	pool      *Pool
	heap      *heap
	segments  *segmentTable
	registrar *registrar
	streams   *streamList
	// removedSegments lists segments that a trim has removed from the core but not unmapped, because
	// its second wait for the streams failed. The next trim unmaps them. Guarded by mu.
	removedSegments []*segment
}

// trim unmaps segments without buffers, but leaves at least minBytes mapped. If the pool has a
// domain, all ranks of the domain must call it.
func (t *trimmer) trim(ctx context.Context, minBytes int64) error {
	if t.pool.Suspended() {
		return trimError(errPoolSuspended)
	}

	drainErr := t.streams.drain(ctx)
	domain := t.registrar.domain
	if domain != nil && errors.Is(drainErr, ErrCapturing) {
		return t.trimWithDomain(ctx, domain, minBytes, drainErr) // informs the other ranks
	}

	if drainErr != nil {
		return trimError(drainErr)
	}

	if domain != nil {
		return t.trimWithDomain(ctx, domain, minBytes, nil)
	}

	return t.trimWithoutDomain(ctx, minBytes)
}

func trimError(err error) error { return fmt.Errorf("trimming a pool: %w", err) }

func (t *trimmer) trimWithoutDomain(ctx context.Context, minBytes int64) error {
	segments, takeErr := t.takeEmptySegments(ctx, minBytes) // no segments after an error
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(takeErr, deregisterErr, unmapErr)
}

// trimWithDomain trims the pool together with the other ranks of the domain. captureErr is an
// ErrCapturing if a capture prevents this rank from trimming, and otherwise nil. With it, all ranks
// return an ErrCapturing.
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

	segments, takeErr := t.takeEmptySegments(ctx, minBytes) // no segments after an error
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	err = errors.Join(takeErr, deregisterErr)
	// Wait until all ranks have deregistered the segments, even after an error. If the wait fails, so
	// does the domain. Then no later trim is possible, and the segments stay mapped until Close.
	if _, waitErr := domain.comm.Exchange(ctx, driver.LaneControl, nil); waitErr != nil {
		cause := domain.life.awaitFault(waitErr)
		return errors.Join(err, cause)
	}

	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(err, unmapErr)
}

// hasKeptMemory reports whether a realignment may free memory of the pool. A realignment gives a
// pool the same layout on all ranks after a fault. It keeps memory that a CUDA graph on some rank
// uses: no new buffer can use this memory until the next realignment.
func hasKeptMemory(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.HasKeptMemory()
}

// takeEmptySegments removes the segments without buffers from the core, and waits for all streams
// again. Then it returns the segments.
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

// removeEmptySegments removes the segments without buffers from the core. It returns them together
// with t.removedSegments, ordered by ordinal. In a closed pool, it does nothing.
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
		s.withdraw() // so that groups register it no more
		segments = append(segments, s)
		t.heap.ledger.Append(&event.Event{
			Kind: event.KindTrim, Stream: s.stream, Segment: s.ordinal, Size: trimmed.Bytes,
		}, noSite)
	}

	slices.SortFunc(segments, compareOrdinals)
	return segments
}
