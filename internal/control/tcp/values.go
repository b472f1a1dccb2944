package tcp

import (
	"context"
	"encoding/binary"
	"fmt"

	"symmem/driver"
	"symmem/internal/control"
)

// values is what is known of one rank's steps under a name.
type values struct {
	// received is the last step that has come, and words are those of the steps that are not taken
	// yet.
	received uint64
	words    []driver.Words
	// completed is the last step that the rank had seen complete: this rank at any time, another
	// one when it failed.
	completed uint64
	// ordered is set, of this rank, if it launches no collective in a wait under the name.
	ordered bool
}

// valuesOf finds a rank's steps under a name, which it has room for.
func (r *rankRecord) valuesOf(name string) (*values, error) {
	v := r.values[name]
	if v != nil {
		return v, nil
	}
	if err := driver.CheckValueName(name, len(r.values)); err != nil {
		return nil, err
	}
	if r.values == nil {
		r.values = map[string]*values{}
	}
	v = &values{}
	r.values[name] = v
	return v, nil
}

// addValue takes one step under a name from the rank.
func (r *rankRecord) addValue(m message) error {
	if r.failed != control.NotFailed {
		return nil // it came too late to be seen complete
	}
	v, err := r.valuesOf(string(m.payload[wordBytes:]))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if m.step != v.received+1 || len(v.words) == maxPosts {
		return fmt.Errorf("step %d of a name after step %d, of which %d are not taken: %w",
			m.step, v.received, len(v.words), ErrProtocol)
	}
	v.received = m.step
	v.words = append(v.words, decodeWords(m.payload))
	return nil
}

// steps are the last step of what is waited for that has come from the rank, and the last one that
// it had seen complete when it failed.
func (r *rankRecord) steps(w *waiting) (came, completed uint64) {
	if w.name == "" {
		return r.received[w.track], r.completed[w.track]
	}
	if v := r.values[w.name]; v != nil {
		return v.received, v.completed
	}
	return 0, 0
}

func encodeWords(words driver.Words, name string) []byte {
	payload := make([]byte, 0, wordBytes+len(name))
	for _, w := range words {
		payload = binary.LittleEndian.AppendUint64(payload, w)
	}
	return append(payload, name...)
}

func decodeWords(payload []byte) (words driver.Words) {
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(payload[8*i:])
	}
	return words
}

// named is this rank's values under one name.
type named struct {
	p    *Plane
	name string
}

// Gather makes one step under the name.
func (n named) Gather(ctx context.Context, mine driver.Words, all []driver.Words) error {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(driver.LaneControl); err != nil {
		return err
	}
	own := p.records[p.me].values[n.name]
	w := &waiting{name: n.name, ordered: own.ordered, step: own.received + 1}
	w.doing = func() string {
		return fmt.Sprintf("%s %d of group %s", driver.ValueText(n.name), w.step, p.cfg.Group.Name())
	}
	if p.peerFailed() {
		return p.failAndNotify(p.peerFault(w.doing))
	}
	own.received = w.step
	p.broadcast(message{kind: kindValue, step: w.step, payload: encodeWords(mine, n.name)}, false)
	if err := p.wait(ctx, w); err != nil {
		return p.failAndNotify(err)
	}
	own.completed = w.step
	for r := range p.records {
		if r == p.me {
			all[r] = mine
			continue
		}
		v := p.records[r].values[n.name]
		all[r], v.words = v.words[0], v.words[1:]
	}
	return nil
}
