package tcp

import (
	"context"
	"fmt"

	"symmem/driver"
)

type namedValue struct {
	p    *Plane
	name string
}

func (n namedValue) Gather(ctx context.Context, ownWords driver.Words, all []driver.Words) error {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable(driver.LaneControl); err != nil {
		return err
	}

	w := &waitState{track: valuePrefix + track(n.name)}
	w.step = p.records[p.ownRank].stepsOn(w.track).posted + 1
	w.callText = func() string {
		return fmt.Sprintf("%s %d of group %s", driver.ValueText(n.name), w.step, p.cfg.Group.Name())
	}
	if p.peerAnnouncedFailure() {
		return failAndNotify(p, p.newPeerError(w.callText))
	}

	got, err := p.exchangeStep(ctx, encodeWords(ownWords[:]...), w)
	if err != nil {
		return failAndNotify(p, err)
	}

	for r, words := range got {
		decodeWords(words, all[r][:])
	}

	return nil
}
