package p2p

import (
	"context"
	"fmt"

	"symmem/driver"
)

// peerSegment is a segment of a peer's staging.
type peerSegment struct {
	at     uintptr // where it is mapped, or 0 as long as it is not
	bytes  int64
	failed error
}

// segmentOf returns the segment in which a message lies. One that its sender has made since is
// mapped in the background: at is 0 until then. in.mu is held.
func (in *inbox) segmentOf(l *announcement) *peerSegment {
	at := slotKey{l.source, l.segment}
	theirs := in.peerSegments[at]
	if theirs == nil {
		theirs = &peerSegment{bytes: int64(l.size)}
		in.peerSegments[at] = theirs
		in.delivering.Go(func() { in.mapSegment(at, theirs) })
	}
	return theirs
}

// mapSegment maps a segment of a peer's.
func (in *inbox) mapSegment(at slotKey, theirs *peerSegment) {
	d, rank := in.Device, in.Config.Ranks[at.source]
	ctx, cancel := context.WithTimeout(context.Background(), d.GPU.Timeout)
	defer cancel()
	go func() {
		select {
		case <-in.Ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	address, err := d.Exporter.Fetch(ctx, rank, stagingKey(in.Config.ID, int(at.number)), theirs.bytes)
	if err != nil && in.counts.Lost(at.source) {
		err = &driver.RankLostError{
			Ranks: []int{rank}, Doing: "fetching a message in group " + in.Config.Name(),
			Members: in.Config.Ranks,
		}
	}
	if err != nil {
		err = fmt.Errorf("fetching a message of rank %d of the world: %w", rank, err)
	}
	in.mu.Lock()
	theirs.at, theirs.failed = address, err
	in.mu.Unlock()
	in.own.wakeup().wake()
}
