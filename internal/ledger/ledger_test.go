package ledger

import (
	"testing"

	"pgregory.net/rapid"

	"symmem/event"
)

// lastKind is the greatest event.Kind. The smallest is 1.
const lastKind = int(event.KindNote)

// drawEvent draws all fields of an event that ranks compare, which excludes Number and Site.
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

// siteOf returns the site that tests append with e. It differs between successive events, which
// are 512 bytes apart.
func siteOf(e *event.Event) uint32 { return uint32(e.Offset/512) % 256 }

// model is a ledger that forgets nothing.
type model struct {
	events  []event.Event
	digests []uint64 // digests[p] covers the first p events
	agreed  uint64   // the highest position passed to Agree
}

// A ledger drops old events, but its answers must be those of a model that keeps everything.
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
				if position := l.Append(&e, siteOf(&e)); position != e.Number {
					t.Fatalf("Append(event %d) = %d; want %d", e.Number, position, e.Number)
				}

				expected.events = append(expected.events, e)
				expected.digests = append(expected.digests, l.digest)
			}

			eventCount := uint64(len(expected.events))
			position := rapid.Uint64Range(expected.agreed, eventCount).Draw(t, "agreed")
			if !l.Agree(position, expected.digests[position]) {
				t.Fatalf("Agree(%d, right digest) = false; want true", position)
			}

			expected.agreed = position
		}

		expected.checkSnapshot(t, l, maxEntries)
		expected.checkPositions(t, l)
	})
}

// checkSnapshot fails the test if l has another length or agreed position than m, or keeps fewer
// than the last maxEntries events. It may keep more, because New rounds maxEntries up.
func (m *model) checkSnapshot(t *rapid.T, l *Ledger, maxEntries int) {
	s := l.Snapshot()
	eventCount := uint64(len(m.events))
	if s.Position != eventCount {
		t.Fatalf("Snapshot = %+v; want position %d", s, eventCount)
	}

	maxFloor := eventCount - min(eventCount, uint64(maxEntries))
	if s.Floor > maxFloor {
		t.Fatalf("Snapshot = %+v; want floor %d or lower, to keep %d events", s, maxFloor,
			maxEntries)
	}

	if s.Agreed != m.agreed || s.AgreedDigest != m.digests[m.agreed] {
		t.Fatalf("Snapshot = %+v; want agreed position %d with digest %#x", s, m.agreed,
			m.digests[m.agreed])
	}
}

// checkPositions compares the digest, event and site at each position, and at one position after
// the end. Below the floor, only some digests are known, and no events.
func (m *model) checkPositions(t *rapid.T, l *Ledger) {
	s := l.Snapshot()
	for p := uint64(0); p <= s.Position+1; p++ {
		hasKeptDigest := p >= s.Floor || p%s.Stride == 0 || p == s.Agreed
		wantKnown := p <= s.Position && hasKeptDigest
		digest, known := l.DigestAt(p)
		if known != wantKnown {
			t.Fatalf("DigestAt(%d): known = %v, want %v, in %+v", p, known, wantKnown, s)
		}

		if known && digest != m.digests[p] {
			t.Fatalf("DigestAt(%d) = %#x, want %#x, in %+v", p, digest, m.digests[p], s)
		}

		wantKept := p < s.Position && p >= s.Floor
		e, kept := l.EventAt(p)
		if kept != wantKept {
			t.Fatalf("EventAt(%d): kept = %v, want %v, in %+v", p, kept, wantKept, s)
		}

		if !kept {
			continue
		}

		if e != m.events[p] {
			t.Fatalf("EventAt(%d) = %v, want %v, in %+v", p, e, m.events[p], s)
		}

		if site, want := l.Load(p, &e), siteOf(&m.events[p]); site != want {
			t.Fatalf("Load(%d) = site %d; want %d", p, site, want)
		}
	}
}

// The ledger has one event, so its last position is 1. Failed calls must change nothing.
func TestAgreeRejectsWrongDigest(t *testing.T) {
	l := New(0)
	l.Append(&event.Event{Kind: event.KindAlloc}, 0)
	if l.Agree(1, l.digest+1) {
		t.Error("Agree accepted a wrong digest")
	}

	if l.Agree(2, 0) {
		t.Error("Agree accepted position 2 of a ledger with 1 event")
	}

	if l.agreedPosition != 0 || l.agreedDigest != Empty {
		t.Errorf("agreed position and digest = %d, %#x; want 0, %#x",
			l.agreedPosition, l.agreedDigest, Empty)
	}
}

// Checkpoints are digests kept at multiples of the stride. When there are too many, every second
// is dropped, and the stride doubles. A long history must not need more memory.
func TestCheckpointsAreBounded(t *testing.T) {
	const kept = 64
	l := New(kept)
	// The initial stride would give 5 times the maximum. So it must double 3 times. After 2 times,
	// there would still be 5/4 of the maximum.
	const wantStride = 8 * maintenanceInterval
	for range 5 * maxCheckpoints * maintenanceInterval {
		l.Append(&event.Event{Kind: event.KindAlloc}, 0)
	}

	if n := len(l.checkpoints); n > maxCheckpoints || n < maxCheckpoints/2 {
		t.Errorf("got %d checkpoints; want %d to %d", n, maxCheckpoints/2, maxCheckpoints)
	}

	if l.stride != wantStride {
		t.Errorf("stride = %d; want %d", l.stride, wantStride)
	}

	if n := cap(l.checkpoints); n > 2*maxCheckpoints {
		t.Errorf("capacity of checkpoints = %d; want at most %d", n, 2*maxCheckpoints)
	}

	if len(l.entries) != kept {
		t.Errorf("length of the ring of events = %d; want %d", len(l.entries), kept)
	}
}

// The ring of kept events must grow with the history, although New allows for many events.
func TestSmallHistoryHasSmallRing(t *testing.T) {
	l := New(0)
	if len(l.entries) != 0 {
		t.Fatalf("length of the ring of an empty ledger = %d; want 0", len(l.entries))
	}

	for range 100 {
		l.Append(&event.Event{Kind: event.KindAlloc}, 0)
	}

	if len(l.entries) != 128 { // the next power of two
		t.Fatalf("length of the ring of 100 events = %d; want 128", len(l.entries))
	}
}

func TestAppendDoesNotAllocateOnceRingIsFull(t *testing.T) {
	l := New(1024)
	// The table of checkpoints must be full as well.
	for range 2 * maxCheckpoints * maintenanceInterval {
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

// mutations contains, for each field that ranks compare, a function that changes its value.
var mutations = map[string]func(*event.Event){
	"kind":      func(e *event.Event) { e.Kind = e.Kind%event.Kind(lastKind) + 1 },
	"stream":    func(e *event.Event) { e.Stream++ },
	"segment":   func(e *event.Event) { e.Segment++ },
	"offset":    func(e *event.Event) { e.Offset++ },
	"size":      func(e *event.Event) { e.Size++ },
	"requested": func(e *event.Event) { e.Requested++ },
}

// Ranks find a difference by the digest, and users see it in the text. The digest of a request
// leaves out where the event was placed: its segment and its offset.
func TestDigestAndTextCoverEveryFieldExceptSite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		original := drawEvent(t)
		for name, mutate := range mutations {
			changed := original
			mutate(&changed)
			if digestAfter(Empty, &original) == digestAfter(Empty, &changed) {
				t.Errorf("%s is not in the digest of %v", name, original)
			}

			if original.String() == changed.String() {
				t.Errorf("%s is not in the text %q", name, original)
			}

			isPlaceField := name == "segment" || name == "offset"
			hasSameDigest := RequestDigest(original) == RequestDigest(changed)
			if hasSameDigest != isPlaceField {
				t.Errorf("%s changed: same request digest = %v, want %v", name, hasSameDigest,
					isPlaceField)
			}

			if same := original.SameRequest(&changed); same != isPlaceField {
				t.Errorf("%s changed: SameRequest = %v, want %v", name, same, isPlaceField)
			}
		}

		moved := original
		moved.Site = "a.go:1"
		moved.Number++
		if digestAfter(Empty, &original) != digestAfter(Empty, &moved) {
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

		ab := digestAfter(digestAfter(Empty, &a), &b)
		ba := digestAfter(digestAfter(Empty, &b), &a)
		if ab == ba {
			t.Fatalf("the digests of %v and %v in both orders are the same", a, b)
		}
	})
}

// The events differ as little as those of a real pool. 2^17 digests form 2^33 pairs. About 2 of
// these are expected to collide in the low 32 bits, and about 2 in the high 32 bits. More than 20
// would indicate a defect.
func TestDigestsHaveFewCollisions(t *testing.T) {
	low, high := map[uint32]bool{}, map[uint32]bool{} // sets of halves of digests
	const n = 1 << 17
	for i := range int64(n) {
		d := digestAfter(Empty, &event.Event{
			Kind: event.KindAlloc, Offset: i << 9, Size: 512, Requested: 512,
		})
		low[uint32(d)] = true
		high[uint32(d>>32)] = true
	}

	if collisions := 2*n - len(low) - len(high); collisions > 20 {
		t.Fatalf("got %d collisions in halves of digests; want at most 20", collisions)
	}
}

func BenchmarkAppend(b *testing.B) {
	for name, maxEntries := range map[string]int{"kept=64Ki": DefaultKept, "kept=1Ki": 1024} {
		b.Run(name, func(b *testing.B) {
			l := New(maxEntries)
			e := event.Event{Kind: event.KindAlloc, Size: 512, Requested: 512}
			for range 2 * DefaultKept { // measure a full ring, which no longer grows
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

// appendAlloc appends an event with the given offset, and 0 or 1 in the other fields.
func appendAlloc(l *Ledger, offset int64) {
	const stream, segment, size, requested = 0, 0, 1, 1
	l.AppendWithoutSite(event.KindAlloc, stream, segment, offset, size, requested)
}

// Restart gives two ledgers with different histories the same position and digest. From then on,
// the same events must keep the ledgers equal, and what they keep must be consistent.
func TestRestart(t *testing.T) {
	a, b := New(maintenanceInterval), New(maintenanceInterval)
	for i := range 3*maintenanceInterval + 5 { // more than a keeps
		appendAlloc(a, int64(i))
	}

	b.AppendWithoutSite(event.KindFree, 1, 2, 3, 4, 5) // differs from the events of a in all fields
	start := max(a.NextStart(), b.NextStart())
	const digest = 77 // any digest will do
	for _, l := range []*Ledger{a, b} {
		l.Restart(start, digest)
		s := l.Snapshot()
		want := Snapshot{
			Position: start, Digest: digest, Agreed: start, AgreedDigest: digest,
			Floor: start, Stride: s.Stride,
		}
		if s != want {
			t.Fatalf("Snapshot after Restart = %+v; want %+v", s, want)
		}

		if s.Stride < start { // then digests before the restart would count as known
			t.Fatalf("stride after Restart = %d; want at least %d", s.Stride, start)
		}
	}

	for i := range 100 * maintenanceInterval {
		appendAlloc(a, int64(i))
		appendAlloc(b, int64(i))
		if a.Snapshot() != b.Snapshot() {
			t.Fatalf("Snapshot = %+v on one ledger, %+v on the other; want the same", a.Snapshot(),
				b.Snapshot())
		}

		s := a.Snapshot()
		for p := s.Floor; p < s.Position; p++ {
			wantOffset := int64(p - start) // offsets count the events since the restart
			if e, kept := a.EventAt(p); !kept || e.Offset != wantOffset {
				t.Fatalf("EventAt(%d) = %v, %v; want offset %d", p, e, kept, wantOffset)
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
