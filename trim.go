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

// trimmer implements Pool.Trim, which unmaps segments without buffers.
type trimmer struct {
	mu        *ranked.Spin[poolMu]
	pool      *Pool
	heap      *heap
	segments  *segmentTable
	registrar *registrar
	streams   *streamList
	// removedSegments lists segments that trim has removed from the core but not unmapped, because
	// the wait for the streams failed. The next trim unmaps them. mu guards this field.
	removedSegments []*segment
}

func (t *trimmer) trim(ctx context.Context, minBytes int64) error {
	if t.pool.Suspended() {
		return fmt.Errorf("trimming a pool: %w", errPoolSuspended)
	}
	g := t.registrar.domain
	drainErr := t.streams.drain(ctx)
	if drainErr != nil && (g == nil || !errors.Is(drainErr, ErrCapturing)) {
		return fmt.Errorf("trimming a pool: %w", drainErr)
	}
	if g == nil {
		return t.trimWithoutDomain(ctx, minBytes)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	history := t.registrar.history
	err := g.aligner.alignAndCompare(ctx, &alignedCall{
		tag: "trim", pools: []*Pool{t.pool}, needsAlign: keepsMemory,
		ledgers: func() []agreement.Ledger { return []agreement.Ledger{history.with(nil)} },
	})
	if err != nil {
		return err
	}
	if err := agreeOnCaptures(ctx, g, drainErr); err != nil {
		return fmt.Errorf("trimming a pool: %w", err)
	}
	idle, err := t.takeIdleSegments(ctx, minBytes)
	err = errors.Join(err, t.segments.forEachMapped(idle, t.registrar.deregister))
	// Other ranks can read a segment until they have deregistered it.
	if _, waitErr := g.comm.Exchange(ctx, driver.LaneControl, nil); waitErr != nil {
		return errors.Join(err, g.life.awaitCause(waitErr))
	}
	return errors.Join(err, t.segments.forEachMapped(idle, t.segments.release))
}

func (t *trimmer) trimWithoutDomain(ctx context.Context, minBytes int64) error {
	idle, err := t.takeIdleSegments(ctx, minBytes)
	return errors.Join(err, t.segments.forEachMapped(idle, t.registrar.deregister),
		t.segments.forEachMapped(idle, t.segments.release))
}

// takeIdleSegments removes the segments without buffers from the core, and waits for all streams.
// Since the wait in trim, another goroutine may have queued work on buffers and freed these
// buffers.
func (t *trimmer) takeIdleSegments(ctx context.Context, minBytes int64) ([]*segment, error) {
	idle := t.removeIdleSegments(minBytes)
	if len(idle) == 0 {
		return nil, nil
	}
	if err := t.streams.drain(ctx); err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.removedSegments = append(t.removedSegments, idle...)
		return nil, fmt.Errorf("trimming a pool: %w", err)
	}
	return idle, nil
}

// removeIdleSegments removes the segments without buffers from the core and prevents their
// registration. It returns these segments and those in t.removedSegments.
func (t *trimmer) removeIdleSegments(minBytes int64) []*segment {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.segments.closed {
		return nil
	}
	idle := t.removedSegments
	t.removedSegments = nil
	for _, trimmed := range t.heap.core.Trim(minBytes) {
		s := t.segments.list[trimmed.Ordinal]
		s.releasing = true
		idle = append(idle, s)
		t.heap.ledger.Absorb(&event.Event{
			Kind: event.KindTrim, Stream: s.stream, Segment: s.ordinal, Size: trimmed.Bytes,
		}, 0)
	}
	slices.SortFunc(idle, byOrdinal)
	return idle
}
