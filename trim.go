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

// Trim unmaps segments in these steps:
//   - Wait for the queued work, which may still use freed buffers.
//   - Remove the segments without buffers from the core, the pool's allocator.
//   - Wait again, because a buffer may have been allocated, used and freed in the meantime.
//   - Deregister the segments. In a domain, a group with the same pools on all ranks, wait for the
//     other ranks to do the same, because they may access the segments until then.
//   - Unmap the segments.

// trimmer implements Pool.Trim.
type trimmer struct {
	mu        *ranked.Spin[poolMu]
	pool      *Pool
	heap      *heap
	segments  *segmentTable
	registrar *registrar
	streams   *streamList
	// removedSegments are the segments of an earlier trim that failed in its second wait. The next
	// trim unmaps them. Guarded by mu.
	removedSegments []*segment
}

// trim leaves at least minBytes mapped. All ranks of the pool's domain, if any, must call it.
func (t *trimmer) trim(ctx context.Context, minBytes int64) error {
	if t.pool.Suspended() {
		return trimError(errPoolSuspended)
	}

	domain := t.registrar.domain
	drainErr := t.streams.drain(ctx)
	isShared := domain != nil && errors.Is(drainErr, ErrCapturing) // all ranks return it
	if drainErr != nil && !isShared {
		return trimError(drainErr)
	}

	if domain != nil {
		return t.trimWithDomain(ctx, domain, minBytes, drainErr)
	}

	return t.trimWithoutDomain(ctx, minBytes)
}

func trimError(err error) error { return fmt.Errorf("trimming a pool: %w", err) }

func (t *trimmer) trimWithoutDomain(ctx context.Context, minBytes int64) error {
	segments, removeErr := t.removeUnusedSegments(ctx, minBytes)
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(removeErr, deregisterErr, unmapErr)
}

// trimWithDomain trims the pool together with the other ranks of the domain. captureErr is nil, or
// an ErrCapturing that prevents this rank from trimming. If a rank passes one, no rank trims.
func (t *trimmer) trimWithDomain(
	ctx context.Context, domain *Group, minBytes int64, captureErr error,
) error {
	domain.mu.Lock()
	defer domain.mu.Unlock()
	poolHistory := func() []agreement.Ledger {
		return []agreement.Ledger{t.registrar.history.with(nil)} // without pending registrations
	}
	err := domain.aligner.realignAndCompare(ctx, &sharedCall{
		tag: "trim", pools: []*Pool{t.pool}, extraReason: hasKeptMemory, histories: poolHistory,
	})
	if err != nil {
		return err
	}

	if err := agreeOnCaptures(ctx, domain, captureErr); err != nil {
		return trimError(err)
	}

	segments, removeErr := t.removeUnusedSegments(ctx, minBytes)
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	err = errors.Join(removeErr, deregisterErr)
	// The exchange is a barrier, which ranks reach even after an error. If the exchange fails, the
	// domain fails too, and the segments stay mapped until Close.
	if _, waitErr := domain.comm.Exchange(ctx, driver.LaneControl, nil); waitErr != nil {
		cause := domain.life.awaitFault(waitErr)
		return errors.Join(err, cause)
	}

	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(err, unmapErr)
}

// hasKeptMemory reports whether the latest realignment had to keep memory for a CUDA graph. Another
// realignment may free that memory. A realignment gives the pool the same layout on all ranks.
func hasKeptMemory(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.HasKeptMemory()
}

// removeUnusedSegments removes the segments without buffers from the core and waits until no stream
// uses the segments any more.
func (t *trimmer) removeUnusedSegments(ctx context.Context, minBytes int64) ([]*segment, error) {
	segments := t.takeFromCore(minBytes)
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

// takeFromCore removes the segments without buffers from the core. It returns these and
// t.removedSegments, sorted by ordinal.
func (t *trimmer) takeFromCore(minBytes int64) []*segment {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.segments.closed {
		return nil
	}

	segments := t.removedSegments
	t.removedSegments = nil
	for _, trimmed := range t.heap.core.Trim(minBytes) {
		s := t.segments.list[trimmed.Ordinal]
		s.withdraw() // groups may no longer register it
		segments = append(segments, s)
		const noSite = 0 // the ledger does not record the call site of a trim
		t.heap.ledger.Append(&event.Event{
			Kind: event.KindTrim, Stream: s.stream, Segment: s.ordinal, Size: trimmed.Bytes,
		}, noSite)
	}

	slices.SortFunc(segments, compareOrdinals)
	return segments
}
