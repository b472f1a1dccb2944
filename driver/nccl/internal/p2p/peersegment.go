package p2p

import (
	"context"
	"fmt"

	"symmem/driver"
)

// peerSegment is a segment of a peer's staging memory.
type peerSegment struct {
	address uintptr // 0 until mapped
	bytes   int64
	err     error // from the attempt to map the segment
}

// segmentOf returns the segment that holds a message. If it is new, a goroutine maps it.
func (in *inbox) segmentOf(a *announcement) *peerSegment {
	key := slotKey{a.source, a.segment}
	segment := in.peerSegments[key]
	if segment == nil {
		segment = &peerSegment{bytes: int64(a.size)}
		in.peerSegments[key] = segment
		in.goroutines.Go(func() { in.mapSegment(key, segment) })
	}

	return segment
}

func (in *inbox) mapSegment(key slotKey, segment *peerSegment) {
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
