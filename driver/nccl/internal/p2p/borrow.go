package p2p

import (
	"context"
	"fmt"

	"symmem/driver"
)

// lentMemory is a segment of a peer's staging.
type lentMemory struct {
	at     uintptr // where it is mapped, or 0 as long as it is not
	bytes  int64
	failed error
}

// lentTo returns the segment in which a message lies. One that its sender has made since is mapped
// in the background: at is 0 until then. in.mu is held.
func (in *inbox) lentTo(l *letter) *lentMemory {
	at := spot{l.source, l.segment}
	lent := in.lent[at]
	if lent == nil {
		lent = &lentMemory{bytes: int64(l.size)}
		in.lent[at] = lent
		in.delivering.Go(func() { in.mapSegment(at, lent) })
	}
	return lent
}

// mapSegment maps a segment of a peer's.
func (in *inbox) mapSegment(at spot, lent *lentMemory) {
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
	address, err := d.Lender.Fetch(ctx, rank, stagingKey(in.Config.ID, int(at.number)), lent.bytes)
	if err != nil && in.known.Lost(at.source) {
		err = &driver.RankLostError{
			Ranks: []int{rank}, Doing: "fetching a message in group " + in.Config.Name(),
			Members: in.Config.Ranks,
		}
	}
	if err != nil {
		err = fmt.Errorf("fetching a message of rank %d of the world: %w", rank, err)
	}
	in.mu.Lock()
	lent.at, lent.failed = address, err
	in.mu.Unlock()
	in.own.bell().ring()
}
