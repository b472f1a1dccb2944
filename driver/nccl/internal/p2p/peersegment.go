package p2p

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
)

// segmentKey identifies a segment of a peer's staging memory.
type segmentKey struct {
	source int
	number uint64
}

// peerSegment is a segment of a peer's staging memory.
type peerSegment struct {
	address uintptr // 0 until mapped
	bytes   int64
	err     error // from the attempt to map the segment
}

// segmentOf returns the segment that holds a message. A goroutine maps new segments.
func (in *inbox) segmentOf(a *announcement) *peerSegment {
	key := segmentKey{a.source, a.segment}
	segment := in.peerSegments[key]
	if segment == nil {
		segment = &peerSegment{bytes: int64(a.segmentBytes)}
		in.peerSegments[key] = segment
		in.goroutines.Go(func() { in.mapSegment(key, segment) })
	}

	return segment
}

func (in *inbox) mapSegment(key segmentKey, segment *peerSegment) {
	d, rank := in.device, in.config.Ranks[key.source]
	ctx, cancel := context.WithTimeout(context.Background(), d.GPU.Timeout)
	defer cancel()
	go func() {
		select {
		case <-in.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	address, err := d.Exporter.Fetch(ctx, rank, stagingKey(in.config.ID, int(key.number)),
		segment.bytes, 0)
	if err != nil && in.messagePlane.IsLost(key.source) {
		err = &driver.RankLostError{
			Ranks: []int{rank}, InCall: "mapping memory for messages in group " + in.config.Name(),
			Members: in.config.Ranks,
		}
	}

	if err != nil {
		err = fmt.Errorf("mapping memory of rank %d of the world for messages: %w", rank, err)
	}

	in.mu.Lock()
	segment.address, segment.err = address, err
	in.mu.Unlock()
	in.mailbox.wakeup().wake()
}

// mappedSegments returns the segments with an address in this process, which they keep while the
// group is suspended. It locks mu.
func (in *inbox) mappedSegments() map[segmentKey]*peerSegment {
	in.mu.Lock()
	defer in.mu.Unlock()
	mapped := map[segmentKey]*peerSegment{}
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

func mapSegmentAgain(
	ctx context.Context, m *Messages, key segmentKey, segment *peerSegment,
) error {
	purpose := "resuming group " + m.Config.Name()
	return control.Fetch(ctx, m.Plane, m.Config, key.source, purpose, func() error {
		_, err := m.Device.Exporter.Fetch(ctx, m.Config.Ranks[key.source],
			stagingKey(m.Config.ID, int(key.number)), segment.bytes, segment.address)
		return err
	})
}
