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

// trimmer implements Pool.Trim in these steps:
//   - Wait for the queued work, which may still use freed buffers.
//   - If the pool has a domain (a group that shares it), check that all its ranks have called Trim.
//   - Remove the segments without buffers from the pool's allocator (core).
//   - Wait again. Since the first wait, a buffer may have been allocated, used and freed.
//   - Deregister the segments.
//   - Wait until the other ranks of the domain have deregistered the segments.
//   - Unmap the segments.
type trimmer struct {
	mu        *ranked.Spin[poolMu]
	pool      *Pool
	heap      *heap
	segments  *segmentTable
	registrar *registrar
	streams   *streamList
	// stillMapped lists segments that earlier trims removed from core, but did not unmap because the
	// second wait failed. Guarded by mu.
	stillMapped []*segment
}

// trim unmaps unused segments, but leaves at least minBytes mapped. If the pool has a domain, all
// its ranks must call trim.
func (t *trimmer) trim(ctx context.Context, minBytes int64) error {
	if t.pool.Suspended() {
		return trimError(errPoolSuspended)
	}

	domain := t.registrar.domain
	drainErr := t.streams.drain(ctx)
	isCapturing := errors.Is(drainErr, ErrCapturing)
	switch {
	case domain != nil && (drainErr == nil || isCapturing):
		return t.trimWithDomain(ctx, domain, minBytes, drainErr)
	case drainErr != nil:
		return trimError(drainErr)
	default:
		return t.trimWithoutDomain(ctx, minBytes)
	}
}

func trimError(err error) error { return fmt.Errorf("trimming a pool: %w", err) }

func (t *trimmer) trimWithoutDomain(ctx context.Context, minBytes int64) error {
	segments, removeErr := t.removeUnusedSegments(ctx, minBytes)
	deregisterErr := t.segments.endEach(segments, t.registrar.deregister)
	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(removeErr, deregisterErr, unmapErr)
}

// trimWithDomain trims the pool together with the other ranks of the domain. captureErr is nil or
// an ErrCapturing. If any rank has an ErrCapturing, no rank trims.
func (t *trimmer) trimWithDomain(
	ctx context.Context, domain *Group, minBytes int64, captureErr error,
) error {
	domain.mu.Lock()
	defer domain.mu.Unlock()
	poolHistory := func() []agreement.Ledger {
		var noPendingSegments []*segment
		return []agreement.Ledger{t.registrar.history.with(noPendingSegments)}
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
	// Wait for the other ranks, even after an error. If the exchange fails, the segments stay mapped
	// until Close.
	if _, waitErr := domain.comm.Exchange(ctx, driver.LaneControl, nil); waitErr != nil {
		cause := domain.life.awaitFault(waitErr)
		return errors.Join(err, cause)
	}

	unmapErr := t.segments.endEach(segments, t.segments.release)
	return errors.Join(err, unmapErr)
}

// hasKeptMemory reports whether the pool's latest realignment had to keep memory for a CUDA graph.
// Trim then realigns the pool again, to free that memory.
func hasKeptMemory(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.HasKeptMemory()
}

// removeUnusedSegments removes segments without buffers from core, and waits for the queued work
// that may use them.
func (t *trimmer) removeUnusedSegments(ctx context.Context, minBytes int64) ([]*segment, error) {
	segments := t.takeFromCore(minBytes)
	if len(segments) == 0 {
		return nil, nil
	}

	if err := t.streams.drain(ctx); err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.stillMapped = append(t.stillMapped, segments...)
		return nil, trimError(err)
	}

	return segments, nil
}

// takeFromCore removes segments without buffers from core, and those of earlier trims from
// stillMapped. It returns both, sorted by ordinal.
func (t *trimmer) takeFromCore(minBytes int64) []*segment {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.segments.closed {
		return nil
	}

	segments := t.stillMapped
	t.stillMapped = nil
	for _, trimmed := range t.heap.core.Trim(minBytes) {
		s := t.segments.list[trimmed.Ordinal]
		s.withdraw() // prevents new registrations
		segments = append(segments, s)
		const noSite = 0 // the ledger does not record the call site of a trim
		t.heap.ledger.Append(&event.Event{
			Kind: event.KindTrim, Stream: s.stream, Segment: s.ordinal, Size: trimmed.Bytes,
		}, noSite)
	}

	slices.SortFunc(segments, compareOrdinals)
	return segments
}
