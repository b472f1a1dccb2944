package p2p

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/control"
)

type segmentKey struct {
	source int
	number uint64
}

// peerSegment is an allocation from which a peer's messages are copied.
type peerSegment struct {
	address uintptr // 0 until mapped; only reserved while the group is suspended
	bytes   int64
	err     error // set if mapping has failed
}

// segmentOf returns the segment that holds a message, and starts to map a new segment.
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
	d := in.device
	worldRank := in.config.Ranks[key.source]
	ctx, cancel := context.WithTimeout(context.Background(), d.GPU.Timeout)
	defer cancel()
	go func() {
		select {
		case <-in.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	const anyAddress = 0
	address, err := d.Exporter.Fetch(ctx, worldRank, stagingKey(in.config.ID, int(key.number)),
		segment.bytes, anyAddress)
	if err != nil && in.messagePlane.IsLost(key.source) {
		err = &driver.RankLostError{
			Ranks: []int{worldRank}, InCall: "mapping memory for messages in group " + in.config.Name(),
			Members: in.config.Ranks,
		}
	}

	if err != nil {
		err = fmt.Errorf("mapping memory of rank %d of the world for messages: %w", worldRank, err)
	}

	in.mu.Lock()
	segment.address, segment.err = address, err
	in.mu.Unlock()
	in.mailbox.wakeup().wake()
}

// segmentsWithAddress returns the segments that have an address. It locks mu.
func (in *inbox) segmentsWithAddress() map[segmentKey]*peerSegment {
	in.mu.Lock()
	defer in.mu.Unlock()
	found := map[segmentKey]*peerSegment{}
	for key, segment := range in.peerSegments {
		if segment.address != 0 {
			found[key] = segment
		}
	}

	return found
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

// mapSegmentAgain maps a segment at its reserved address. The caller must not hold mu.
func (in *inbox) mapSegmentAgain(
	ctx context.Context, key segmentKey, segment *peerSegment,
) error {
	purpose := "resuming group " + in.config.Name()
	return control.Fetch(ctx, in.plane, in.config, key.source, purpose, func() error {
		_, err := in.device.Exporter.Fetch(ctx, in.config.Ranks[key.source],
			stagingKey(in.config.ID, int(key.number)), segment.bytes, segment.address)
		return err
	})
}
