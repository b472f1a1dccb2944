package p2p

import (
	"sync/atomic"
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// firstBytes is how much staging a peer of these tests shares.
const firstBytes = 4 << 20

// TestMessagesThatCannotBeAreRefused has a peer write what no Send writes. Nothing is read where it
// says.
func TestMessagesThatCannotBeAreRefused(t *testing.T) {
	for what, spoil := range map[string]func(h *header){
		"another size of the segment that is mapped": func(h *header) { h.size, h.offset = 1<<40, 1<<39 },
		"a segment of more bytes than there are":     func(h *header) { h.segment, h.size = 2, 1<<63 },
		"a segment whose number has no end":          func(h *header) { h.segment = 1<<32 + 1 },
		"an offset behind the end":                   func(h *header) { h.offset = h.size - 4 },
		"an offset that overflows":                   func(h *header) { h.offset = ^uint64(3) },
		"a place that there is not":                  func(h *header) { h.slot = Slots },
		"no segment":                                 func(h *header) { h.segment = 0 },
		"no number":                                  func(h *header) { h.number = 0 },
		"a tag that there is not":                    func(h *header) { h.tag = driver.MaxTag + 1 },
	} {
		t.Run(what, func(t *testing.T) {
			in := newInbox(t)
			h := header{number: 1, bytes: 8, segment: 1, size: firstBytes}
			spoil(&h)
			in.hear(&h)
			if now, err := in.post(newRecv(8)); err == nil || now {
				t.Errorf("given: %v, error %v, want a refusal", now, err)
			}
		})
	}
	t.Run("more messages than there can be", func(t *testing.T) {
		in := newInbox(t)
		spin.StoreRelease64(&in.own.ring(0).posted, 1<<60)
		if now, err := in.post(newRecv(8)); err == nil || now {
			t.Errorf("given: %v, error %v, want a refusal", now, err)
		}
	})
}

func TestAMessageThatIsThereIsGivenAtOnce(t *testing.T) {
	in := newInbox(t)
	in.hear(&header{number: 1, bytes: 8, segment: 1, size: firstBytes, offset: 64})
	e := newRecv(8)
	if now, err := in.post(e); err != nil || !now {
		t.Fatalf("given: %v, error %v", now, err)
	}
	if from := e.descriptor.From; from != 1<<30+64 {
		t.Errorf("it is copied from %#x", from)
	}
}

// TestALeftPeerHasNoMoreMessagesUntakenThanThereArePlaces has a peer that left tell nonsense.
func TestALeftPeerHasNoMoreMessagesUntakenThanThereArePlaces(t *testing.T) {
	in := newInbox(t)
	o := outbox{
		Group: &Group{Config: &driver.GroupConfig{Ranks: []int{0, 1}}},
		peers: []peerOutbox{{}, {mailbox: in.own}},
	}
	spin.StoreRelease64(&in.own.ring(0).posted, 1<<60)
	atomic.StoreUint32(&in.own.wakeup().closed, 1)
	if got := len(o.unread(1)); got != Slots {
		t.Errorf("got %d messages, want %d", got, Slots)
	}
}

// newInbox is the inbox of rank 1 of two ranks, without a GPU: rank 0 shares memory at 1 GiB.
func newInbox(t *testing.T) *inbox {
	t.Helper()
	f, err := sys.Memfd("symmem-mailbox", mailboxBytes(2))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapping, err := sys.Map(f, 0, mailboxBytes(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mapping.Close(); err != nil {
			t.Error(err)
		}
	})
	return &inbox{
		Group:        &Group{Config: &driver.GroupConfig{Ranks: []int{0, 1}, Rank: 1}},
		own:          &mailbox{memory: mapping, ranks: 2},
		announced:    map[address]*announcement{},
		expected:     map[address]*End{},
		repeated:     map[slotKey]*announcement{},
		peerSegments: map[slotKey]*peerSegment{{0, 1}: {at: 1 << 30, bytes: firstBytes}},
	}
}

// hear has rank 0 announce a message, which is there.
func (in *inbox) hear(h *header) {
	atomic.StoreUint32(&in.own.flags(0).full[0], 1)
	in.own.ring(0).post(h)
}

// newRecv is a Recv from rank 0, with its size in bytes.
func newRecv(bytes int64) *End {
	call := &driver.Call{Operation: driver.Recv, Count: bytes, DataType: driver.Uint8}
	return &End{plan: &Plan{Call: call}, descriptor: &kernels.Message{}}
}
