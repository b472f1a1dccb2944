package host

import (
	"context"
	"fmt"
	"sync"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// pairEnds are this rank's two ends towards one peer.
type pairEnds struct {
	sends, receives pairEnd
}

// pairEnd counts the chunks that went one way; its mutex keeps messages whole.
type pairEnd struct {
	mu    sync.Mutex
	chunk uint64
}

// transfer is one Send or Recv under way. A message moves in chunks through the sender's mailbox:
// the sender waits until the last chunk was taken, the receiver until the next one is posted. A
// message of one chunk leaves the sender at once.
type transfer struct {
	c     *communicator
	plan  *plan
	box   *pair // set by run, while the region cannot go away
	end   *pairEnd
	moved int64
}

func (c *communicator) transfer(p *plan) *transfer {
	end := &c.pairs[p.Root].sends
	if p.Operation == driver.Recv {
		end = &c.pairs[p.Root].receives
	}
	return &transfer{c: c, plan: p, end: end}
}

// mailbox finds the mailbox between the two ranks.
func (t *transfer) mailbox() *pair {
	from, to := t.c.cfg.Rank, t.plan.Root
	if t.plan.Operation == driver.Recv {
		from, to = to, from
	}
	return pairIn(t.c.region.Base(), len(t.c.blocks), from, to)
}

// run moves the whole message.
func (t *transfer) run() error {
	if err := t.c.enter(); err != nil {
		return err
	}
	defer t.c.leave()
	t.box = t.mailbox()
	t.end.mu.Lock()
	defer t.end.mu.Unlock()
	for first := true; first || t.moved < t.plan.bytes; first = false {
		if err := t.await(); err != nil {
			return t.c.failed(err)
		}
		if err := t.move(); err != nil {
			return t.c.failed(err)
		}
	}
	return nil
}

// skip fails the group: the peer would get what was never computed.
func (t *transfer) skip(cause error) {
	if t.c.enter() != nil {
		return
	}
	defer t.c.leave()
	t.c.fail(&driver.PriorError{
		Doing: fmt.Sprintf("%v with rank %d of group %s",
			t.plan.Operation, t.c.cfg.Ranks[t.plan.Root], t.c.cfg.Name()),
		Rank: t.c.cfg.Ranks[t.c.cfg.Rank], Cause: cause,
	})
}

// word is the counter of the other side that this side waits for, and its value.
func (t *transfer) word() (word *uint64, want uint64) {
	if t.plan.Operation == driver.Send {
		return &t.box.taken, t.end.chunk
	}
	return &t.box.posted, t.end.chunk + 1
}

func (t *transfer) await() error {
	word, want := t.word()
	if spin.UntilAtLeast64(word, want, 0, t.c.budget.polls) {
		return nil
	}
	return t.c.linger(context.Background(), &waiting{
		word: func(*block) *uint64 { return word }, want: want, from: []int{t.plan.Root},
		doing: func() string {
			return fmt.Sprintf("%v with rank %d of group %s",
				t.plan.Operation, t.c.cfg.Ranks[t.plan.Root], t.c.cfg.Name())
		},
	})
}

// move moves one chunk and tells the other side.
func (t *transfer) move() error {
	bytes := min(t.plan.bytes-t.moved, pairBytes)
	data := unsafe.Pointer(&t.box.data)
	t.end.chunk++
	if t.plan.Operation == driver.Send {
		reduce.Copy(data, unsafe.Add(pointer(t.plan.Send), t.moved), int(bytes), reduce.Hint{})
		spin.StoreRelease64(&t.box.digest, t.plan.Digest)
		spin.StoreRelease64(&t.box.posted, t.end.chunk)
	} else {
		if t.c.check.Load() && spin.LoadAcquire64(&t.box.digest) != t.plan.Digest {
			return t.c.cfg.Mismatch(t.end.chunk, &t.plan.Call, t.plan.Root)
		}
		reduce.Copy(unsafe.Add(pointer(t.plan.Recv), t.moved), data, int(bytes), reduce.Hint{})
		spin.StoreRelease64(&t.box.taken, t.end.chunk)
	}
	t.moved += bytes
	t.c.ring()
	return nil
}
