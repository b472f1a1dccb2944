package ledger

import (
	"testing"

	"pgregory.net/rapid"

	"symmem/event"
)

// lastKind is the greatest event.Kind.
const lastKind = int(event.KindNote)

func drawEvent(t *rapid.T) event.Event {
	return event.Event{
		Kind:      event.Kind(rapid.IntRange(1, lastKind).Draw(t, "kind")),
		Stream:    rapid.Uint32Range(0, 3).Draw(t, "stream"),
		Segment:   rapid.Int32Range(-1, 5).Draw(t, "segment"),
		Offset:    rapid.Int64Range(0, 1<<40).Draw(t, "offset"),
		Size:      rapid.Int64Range(0, 1<<40).Draw(t, "size"),
		Requested: rapid.Int64Range(0, 1<<40).Draw(t, "requested"),
	}
}

type model struct {
	events  []event.Event
	digests []uint64 // digests[p] covers the first p events
	agreed  uint64
}

func TestLedgerMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxEntries := rapid.SampledFrom([]int{1, 64, 100, 1024}).Draw(t, "kept")
		l := New(maxEntries)
		expected := model{digests: []uint64{Empty}}
		e := drawEvent(t)
		for range rapid.IntRange(1, 5).Draw(t, "bursts") {
			for range rapid.IntRange(0, 900).Draw(t, "events") {
				e.Offset += 512
				e.Number = uint64(len(expected.events))
				if p := l.Append(&e, uint32(e.Offset>>9)&0xff); p != e.Number {
					t.Fatalf("Append(event %d) = %d", e.Number, p)
				}
				expected.events = append(expected.events, e)
				expected.digests = append(expected.digests, l.digest)
			}
			at := rapid.Uint64Range(expected.agreed, uint64(len(expected.events))).Draw(t, "agreed")
			if !l.Agree(at, expected.digests[at]) {
				t.Fatalf("Agree(%d, right digest) = false; want true", at)
			}
			expected.agreed = max(expected.agreed, at)
		}
		expected.check(t, l, maxEntries)
	})
}

func (m *model) check(t *rapid.T, l *Ledger, maxEntries int) {
	s := l.Snapshot()
	if n := uint64(len(m.events)); s.Position != n || s.Floor > n-min(n, uint64(maxEntries)) {
		t.Fatalf("Snapshot = %+v; want position %d and %d events kept", s, n, maxEntries)
	}
	if s.Agreed != m.agreed || s.AgreedDigest != m.digests[m.agreed] {
		t.Fatalf("Snapshot = %+v; want the agreed position %d", s, m.agreed)
	}
	for p := uint64(0); p <= s.Position+1; p++ {
		digest, known := l.DigestAt(p)
		want := p <= s.Position && (p >= s.Floor || p%s.Stride == 0 || p == s.Agreed)
		if known != want || known && digest != m.digests[p] {
			t.Fatalf("DigestAt(%d): known = %v, want %v, in %+v", p, known, want, s)
		}
		e, known := l.EventAt(p)
		if want = p < s.Position && p >= s.Floor; known != want || known && e != m.events[p] {
			t.Fatalf("EventAt(%d): known = %v, want %v, in %+v", p, known, want, s)
		}
		if !known {
			continue
		}
		if site, want := l.Load(p, &e), uint32(e.Offset>>9)&0xff; site != want {
			t.Fatalf("Load(%d) = site %d; want %d", p, site, want)
		}
	}
}

func TestAgreeRejectsWrongDigest(t *testing.T) {
	l := New(0)
	l.Append(&event.Event{Kind: event.KindAlloc}, 0)
	if l.Agree(1, l.digest+1) {
		t.Error("Agree accepted a wrong digest")
	}
	if l.Agree(2, 0) {
		t.Error("Agree accepted a future position")
	}
	if l.agreedPosition != 0 || l.agreedDigest != Empty {
		t.Errorf("agreed position and digest = %d, %#x; want 0, %#x",
			l.agreedPosition, l.agreedDigest, Empty)
	}
}

func TestCheckpointsAreBounded(t *testing.T) {
	l := New(64)
	for range maxCheckpoints * maintenanceInterval * 5 {
		l.Append(&event.Event{Kind: event.KindAlloc}, 0)
	}
	if n := len(l.checkpoints); n > maxCheckpoints || n < maxCheckpoints/2 {
		t.Errorf("got %d checkpoints; want %d to %d", n, maxCheckpoints/2, maxCheckpoints)
	}
	if l.stride != 8*maintenanceInterval || cap(l.checkpoints) > 2*maxCheckpoints ||
		len(l.entries) != 64 {
		t.Errorf("stride %d, table of %d, ring of %d; want %d, at most %d, 64", l.stride,
			cap(l.checkpoints), len(l.entries), 8*maintenanceInterval, 2*maxCheckpoints)
	}
}

func TestSmallHistoryHasSmallRing(t *testing.T) {
	l := New(0)
	if len(l.entries) != 0 {
		t.Fatalf("length of the ring of an empty ledger = %d; want 0", len(l.entries))
	}
	for range 100 {
		l.Append(&event.Event{Kind: event.KindAlloc}, 0)
	}
	if len(l.entries) != 128 {
		t.Fatalf("length of the ring of 100 events = %d; want 128", len(l.entries))
	}
}

func TestAppendDoesNotAllocateOnceRingIsFull(t *testing.T) {
	l := New(1024)
	for range maxCheckpoints * maintenanceInterval * 2 {
		l.Append(&event.Event{Kind: event.KindAlloc}, 0)
	}
	n := testing.AllocsPerRun(10, func() {
		for i := range int64(10_000) {
			l.Append(&event.Event{Kind: event.KindAlloc, Offset: i}, 0)
		}
	})
	if n != 0 {
		t.Fatalf("got %v allocations; want 0", n)
	}
}

var mutations = map[string]func(*event.Event){
	"kind":      func(e *event.Event) { e.Kind = e.Kind%event.Kind(lastKind) + 1 },
	"stream":    func(e *event.Event) { e.Stream++ },
	"segment":   func(e *event.Event) { e.Segment++ },
	"offset":    func(e *event.Event) { e.Offset++ },
	"size":      func(e *event.Event) { e.Size++ },
	"requested": func(e *event.Event) { e.Requested++ },
}

func TestDigestAndTextCoverEveryFieldExceptSite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		for name, mutate := range mutations {
			o := e
			mutate(&o)
			if digestAfter(Empty, &e) == digestAfter(Empty, &o) {
				t.Errorf("%s is not in the digest of %v", name, e)
			}
			if e.String() == o.String() {
				t.Errorf("%s is not in the text %q", name, e)
			}
			isPlaceField := name == "segment" || name == "offset"
			if same := RequestDigest(e) == RequestDigest(o); same != isPlaceField ||
				e.SameRequest(&o) != isPlaceField {
				t.Errorf("%s: same request digest %v, want %v", name, same, isPlaceField)
			}
		}
		o := e
		o.Site, o.Number = "a.go:1", o.Number+1
		if digestAfter(Empty, &e) != digestAfter(Empty, &o) {
			t.Error("the call site or the number changes the digest")
		}
	})
}

func TestDigestDependsOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawEvent(t), drawEvent(t)
		if a == b {
			return
		}
		if digestAfter(digestAfter(Empty, &a), &b) == digestAfter(digestAfter(Empty, &b), &a) {
			t.Fatalf("the digests of %v and %v in both orders are the same", a, b)
		}
	})
}

// The events differ as little as those of a real pool. 2^17 digests form 2^33 pairs, so about 2
// collisions are expected in the low and in the high 32 bits. More than 20 would indicate a defect.
func TestDigestsHaveFewCollisions(t *testing.T) {
	low, high := map[uint32]bool{}, map[uint32]bool{}
	const n = 1 << 17
	for i := range int64(n) {
		d := digestAfter(Empty, &event.Event{
			Kind: event.KindAlloc, Offset: i << 9, Size: 512, Requested: 512,
		})
		low[uint32(d)], high[uint32(d>>32)] = true, true
	}
	if lost := 2*n - len(low) - len(high); lost > 20 {
		t.Fatalf("got %d collisions in halves of digests; want at most 20", lost)
	}
}

func BenchmarkAppend(b *testing.B) {
	for name, maxEntries := range map[string]int{"kept=64Ki": DefaultKept, "kept=1Ki": 1024} {
		b.Run(name, func(b *testing.B) {
			l := New(maxEntries)
			e := event.Event{Kind: event.KindAlloc, Size: 512, Requested: 512}
			for range 2 * DefaultKept {
				l.Append(&e, 0)
			}
			b.ReportAllocs()
			for b.Loop() {
				e.Offset += 512
				l.Append(&e, 0)
			}
		})
	}
}

func TestRestart(t *testing.T) {
	a, b := New(maintenanceInterval), New(maintenanceInterval)
	for i := range 3*maintenanceInterval + 5 {
		a.AppendWithoutSite(event.KindAlloc, 0, 0, int64(i), 1, 1)
	}
	b.AppendWithoutSite(event.KindFree, 1, 2, 3, 4, 5)
	start := max(a.NextStart(), b.NextStart())
	for _, l := range []*Ledger{a, b} {
		l.Restart(start, 77)
		if s := l.Snapshot(); s.Position != start || s.Digest != 77 || s.Floor != start ||
			s.Agreed != start || s.Stride < start {
			t.Fatalf("Snapshot after Restart = %+v; want position %d and digest 77", s, start)
		}
	}
	for i := range 100 * maintenanceInterval {
		a.AppendWithoutSite(event.KindAlloc, 0, 0, int64(i), 1, 1)
		b.AppendWithoutSite(event.KindAlloc, 0, 0, int64(i), 1, 1)
		if a.Snapshot() != b.Snapshot() {
			t.Fatalf("Snapshot = %+v on one ledger, %+v on the other; want the same", a.Snapshot(),
				b.Snapshot())
		}
		s := a.Snapshot()
		for p := s.Floor; p < s.Position; p++ {
			if e, ok := a.EventAt(p); !ok || e.Offset != int64(p-start) {
				t.Fatalf("EventAt(%d) = %v, %v; want offset %d", p, e, ok, p-start)
			}
		}
		for p := uint64(0); p < s.Position; p += s.Stride {
			if _, known := a.DigestAt(p); !known {
				t.Fatalf("DigestAt(%d): known = false with stride %d, want true", p, s.Stride)
			}
		}
	}
	if _, known := a.DigestAt(start - 1); known {
		t.Fatalf("DigestAt(%d): known = true before the restart, want false", start-1)
	}
}
