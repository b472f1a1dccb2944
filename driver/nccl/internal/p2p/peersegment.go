package p2p

import (
	"context"
	"fmt"

	"symmem/driver"
)

// peerSegment tracks the mapping of a segment of a peer's staging memory.
type peerSegment struct {
	at     uintptr // the address of the mapping; 0 until it is mapped
	bytes  int64
	failed error // why it could not be mapped
}

// segmentOf returns the segment that holds a message. A segment that was not mapped when the group
// connected is mapped in the background. in.mu is held.
func (in *inbox) segmentOf(a *announcement) *peerSegment {
	at := slotKey{a.source, a.segment}
	theirs := in.peerSegments[at]
	if theirs == nil {
		theirs = &peerSegment{bytes: int64(a.size)}
		in.peerSegments[at] = theirs
		in.delivering.Go(func() { in.mapSegment(at, theirs) })
	}
	return theirs
}

// mapSegment maps a segment of a peer.
func (in *inbox) mapSegment(at slotKey, theirs *peerSegment) {
	d, rank := in.device, in.config.Ranks[at.source]
	ctx, cancel := context.WithTimeout(context.Background(), d.GPU.Timeout)
	defer cancel()
	go func() {
		select {
		case <-in.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	address, err := d.Exporter.Fetch(ctx, rank, stagingKey(in.config.ID, int(at.number)), theirs.bytes)
	if err != nil && in.counts.Lost(at.source) {
		err = &driver.RankLostError{
			Ranks: []int{rank}, Doing: "mapping memory for messages in group " + in.config.Name(),
			Members: in.config.Ranks,
		}
	}
	if err != nil {
		err = fmt.Errorf("mapping memory of rank %d of the world for messages: %w", rank, err)
	}
	in.mu.Lock()
	theirs.at, theirs.failed = address, err
	in.mu.Unlock()
	in.own.wakeup().wake()
}
