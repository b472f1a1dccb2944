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
	// came is the last step that has come, and words are those of the steps that are not taken yet.
	came  uint64
	words []driver.Words
	// completed is the last step that the rank had seen complete: this rank at any time, another one
	// when it failed.
	completed uint64
	// ordered tells, of this rank, that it launches no collective in a wait under the name.
	ordered bool
}

// under finds a rank's steps under a name, which it has room for.
func (r *row) under(name string) (*values, error) {
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

// give takes one step under a name from the rank.
func (r *row) give(m message) error {
	if r.failed != control.NotFailed {
		return nil // it came too late to be seen complete
	}
	v, err := r.under(string(m.payload[wordBytes:]))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if m.step != v.came+1 || len(v.words) == mostPosts {
		return fmt.Errorf("step %d of a name after step %d, of which %d are not taken: %w",
			m.step, v.came, len(v.words), ErrProtocol)
	}
	v.came = m.step
	v.words = append(v.words, decodeWords(m.payload))
	return nil
}

// steps are the last step of what is waited for that has come from the rank, and the last one that
// it had seen complete when it failed.
func (r *row) steps(w *waiting) (came, completed uint64) {
	if w.name == "" {
		return r.came[w.track], r.completed[w.track]
	}
	if v := r.values[w.name]; v != nil {
		return v.came, v.completed
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

// named is this rank's end of a name.
type named struct {
	p    *Plane
	name string
}

// Gather makes one step under the name.
func (n named) Gather(ctx context.Context, mine driver.Words, all []driver.Words) error {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(driver.LaneControl); err != nil {
		return err
	}
	own := p.rows[p.me].values[n.name]
	w := &waiting{name: n.name, ordered: own.ordered, step: own.came + 1}
	w.doing = func() string {
		return fmt.Sprintf("%s %d of group %s", driver.ValueText(n.name), w.step, p.cfg.Group.Name())
	}
	if p.peerFailed() {
		return p.concede(p.peerFault(w.doing))
	}
	own.came = w.step
	p.broadcast(message{kind: kindValue, step: w.step, payload: encodeWords(mine, n.name)}, false)
	if err := p.wait(ctx, w); err != nil {
		return p.concede(err)
	}
	own.completed = w.step
	for r := range p.rows {
		if r == p.me {
			all[r] = mine
			continue
		}
		v := p.rows[r].values[n.name]
		all[r], v.words = v.words[0], v.words[1:]
	}
	return nil
}
