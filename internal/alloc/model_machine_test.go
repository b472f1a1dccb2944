package alloc

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// machine drives a Core and its model with the same random calls.
type machine struct {
	core   *Core
	model  *model
	mark   Mark          // latest mark of the Core
	marked modelMark     // latest mark of the model
	held   []*modelBlock // live and parked blocks
	stale  []Block       // freed blocks
	spread uint64        // distance of the next segment from the base address
}

func newMachine(t *rapid.T) *machine {
	config := Config{
		Policy:      Policy(rapid.IntRange(0, 1).Draw(t, "policy")),
		Sizing:      Sizing(rapid.IntRange(0, 1).Draw(t, "sizing")),
		First:       rapid.SampledFrom([]int64{64 * kib, 4 * mib}).Draw(t, "first"),
		Granularity: rapid.SampledFrom([]int64{Unit, 64 * kib}).Draw(t, "granularity"),
		Capacity:    rapid.SampledFrom([]int64{0, 3 * mib, 64 * mib}).Draw(t, "capacity"),
	}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}

	return &machine{core: c, model: newModel(c)}
}

func drawStream(t *rapid.T) Stream { return Stream(rapid.IntRange(0, 3).Draw(t, "stream")) }

func drawSize(t *rapid.T) int64 {
	limit := rapid.SampledFrom([]int64{2 * kib, 64 * kib, 2 * mib, 24 * mib}).Draw(t, "limit")
	return rapid.Int64Range(1, limit).Draw(t, "size")
}

func (m *machine) pick(t *rapid.T, states ...State) *modelBlock {
	var candidates []*modelBlock
	for _, b := range m.held {
		if slices.Contains(states, b.state) {
			candidates = append(candidates, b)
		}
	}

	if len(candidates) == 0 {
		t.Skip("no block")
	}

	return rapid.SampledFrom(candidates).Draw(t, "block")
}

func (m *machine) Alloc(t *rapid.T) {
	size, stream := drawSize(t), drawStream(t)
	got, grow, err := m.core.Alloc(size, stream)
	want, bytes := m.model.alloc(size, stream)
	if grow.Bytes != bytes || (want == nil && bytes == 0) != errors.Is(err, ErrOutOfMemory) {
		t.Fatalf("Alloc grows by %d bytes, error %v; model grows by %d", grow.Bytes, err, bytes)
	}

	m.checkReports(t)
	if want == nil && bytes == 0 {
		return
	}

	if want == nil {
		m.addSegment(t, grow, m.core.config.smallIndexBit(roundUp(size, Unit)) == 1)
		got, _, err = m.core.Alloc(size, stream)
		want, _ = m.model.alloc(size, stream)
	}

	if err != nil || want == nil {
		t.Fatalf("Alloc = %+v, %v; model wants %+v", got, err, want)
	}

	want.handle = got.Handle
	m.held = append(m.held, want)
	if got != want.block() {
		t.Fatalf("placed %+v, model wants %+v", got, want.block())
	}
}

// addSegment adds a segment above or below all others, so that the two policies choose different
// blocks.
func (m *machine) addSegment(t *rapid.T, grow Growth, small bool) {
	address := uint64(1<<46) + m.spread
	if rapid.Bool().Draw(t, "below") {
		address = 1<<45 - m.spread
	}

	m.spread += 1 << 32
	ordinal, err := m.core.AddSegment(grow, address)
	if err != nil {
		t.Fatal(err)
	}

	m.model.add(grow, address, m.core.nameOfIndex(grow.indexID), small, ordinal)
}

func (m *machine) Free(t *rapid.T) {
	b := m.pick(t, Live)
	v := b.block()
	got, err := m.core.Free(v)
	if want := m.model.free(b); err != nil || got != want {
		t.Fatalf("Free = %s, %v; model wants %s", got, err, want)
	}

	m.checkReports(t)
	m.forget(b, v)
}

// forget moves a block from held to stale unless it is still live or parked.
func (m *machine) forget(b *modelBlock, v Block) {
	if b.state == Live || b.state == Parked {
		return
	}

	m.held = slices.DeleteFunc(m.held, func(x *modelBlock) bool { return x == b })
	m.stale = append(m.stale, v)
}

func (m *machine) FreeTwice(t *rapid.T) {
	if len(m.stale) == 0 {
		t.Skip("nothing freed yet")
	}

	v := rapid.SampledFrom(m.stale).Draw(t, "stale")
	if _, err := m.core.Free(v); !errors.Is(err, ErrDoubleFree) {
		t.Fatalf("second Free of %+v = %v, want ErrDoubleFree", v, err)
	}

	if _, err := m.core.Pin(v.Handle); !errors.Is(err, ErrFreed) {
		t.Fatalf("Pin of freed %+v = %v, want ErrFreed", v, err)
	}
}

func (m *machine) Use(t *rapid.T) {
	b, on := m.pick(t, Live), drawStream(t)
	if err := m.core.Use(b.block().Handle, on); err != nil {
		t.Fatal(err)
	}

	m.model.use(b, on)
}

func (m *machine) RenewUse(t *rapid.T) {
	b, on := m.pick(t, Live), drawStream(t)
	m.core.RenewUse(b.block().Handle, on)
	m.model.useAgain(b, on)
}

func (m *machine) Mark(*rapid.T) { m.mark, m.marked = m.core.Mark(), m.model.mark() }

func (m *machine) StreamCompleted(t *rapid.T) {
	on := drawStream(t)
	if rapid.Bool().Draw(t, "all") {
		m.Mark(t)
	}

	m.core.StreamCompleted(on, m.mark)
	m.model.sync(on, m.marked)
	m.checkReports(t)
}

func (m *machine) MarkIdle(t *rapid.T) {
	on := drawStream(t)
	m.core.MarkIdle(on, m.mark)
	if m.model.frees == m.marked.frees {
		m.model.markClean(on)
	}
}

func (m *machine) Pin(t *rapid.T) {
	b := m.pick(t, Live)
	if _, err := m.core.Pin(b.block().Handle); err != nil {
		t.Fatal(err)
	}

	b.pins++
}

func (m *machine) Unpin(t *rapid.T) {
	b := m.pick(t, Live, Parked)
	v := b.block()
	if b.pins == 0 {
		if _, _, err := m.core.Unpin(v.Handle); !errors.Is(err, ErrNotPinned) {
			t.Fatalf("Unpin without a Pin = %v, want ErrNotPinned", err)
		}

		return
	}

	unpinned, got, err := m.core.Unpin(v.Handle)
	if want := m.model.unpin(b); err != nil || got != want || unpinned != v {
		t.Fatalf("Unpin = %+v, %s, %v; model wants %+v, %s", unpinned, got, err, v, want)
	}

	m.checkReports(t)
	m.forget(b, v)
}

func (m *machine) Trim(t *rapid.T) {
	keep := rapid.SampledFrom([]int64{0, 1 * mib, 8 * mib}).Draw(t, "keep")
	got, want := m.core.Trim(keep), m.model.trim(keep)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("Trim differs (-model +core):\n%s", diff)
	}
}

func (m *machine) Reserve(t *rapid.T) {
	bytes, stream := drawSize(t), drawStream(t)
	m.model.request(stream)
	grow, err := m.core.Reserve(bytes, stream)
	rounded, geometric := roundUp(bytes, Unit), m.core.config.Sizing == Geometric
	if err != nil {
		if !errors.Is(err, ErrOutOfMemory) || geometric &&
			(m.model.grow(rounded) != 0 || m.model.takeCleanMemory(rounded, stream) != nil) {
			t.Fatal(err)
		}

		return
	}

	switch {
	case grow.Bytes > 0:
		m.addSegment(t, grow, false)
	case geometric && m.model.best(rounded, stream) == nil &&
		m.model.takeCleanMemory(rounded, stream) == nil:
		t.Fatalf("Reserve of %d bytes succeeded without enough memory", bytes)
	default:
		m.model.reserve(rounded, stream)
	}

	large := slices.ContainsFunc(m.model.allBlocks(), func(b *modelBlock) bool {
		return b.state == Free && b.size >= bytes && b.region.stream == stream
	})
	if !large {
		t.Fatalf("no free block of %d bytes after Reserve, which grew by %d", bytes, grow.Bytes)
	}
}

func (m *machine) Seize(t *rapid.T) {
	size, stream, spared := drawSize(t), drawStream(t), drawStream(t)
	canTakeFrom := func(s Stream) bool { return s != spared }
	var got []Stream
	var waitErr error
	if rapid.Bool().Draw(t, "the wait fails") {
		waitErr = errors.New("no event")
	}

	taken, err := m.core.Seize(size, stream, canTakeFrom, func(owner Stream) error {
		got = append(got, owner)
		return waitErr
	})
	if err != nil && errors.Is(err, waitErr) && !taken && len(got) == 1 {
		m.model.begin()
		m.model.request(stream)
		return // Check then verifies that nothing has changed.
	}

	want := m.model.seize(roundUp(size, Unit), stream, spared)
	if err != nil || taken != (len(want) > 0) || !slices.Equal(got, want) {
		t.Fatalf("Seize = %t, %v and waits for streams %v; model waits for %v", taken, err, got, want)
	}

	m.checkReports(t)
}

func (m *machine) checkReports(t *rapid.T) {
	got := [3]any{m.core.EventsToRecord(), m.core.Waits(), m.core.ReturnedBlocks()}
	want := [3]any{m.model.toRecord, m.model.waits, m.model.returned}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("reports differ (-model +core):\n%s", diff)
	}
}

func (m *machine) Check(t *rapid.T) {
	if err := m.core.Verify(); err != nil {
		t.Fatal(err)
	}

	var got []View
	for s := range m.core.Segments() {
		got = slices.AppendSeq(got, m.core.Blocks(s.Ordinal))
	}

	want := m.model.views()
	if !slices.Equal(got, want) {
		t.Fatalf("layouts differ (-model +core):\n%s", cmp.Diff(want, got))
	}
}

func TestCoreMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		actions := rapid.StateMachineActions(m)
		actions["Alloc again"] = m.Alloc
		actions["Alloc more"] = m.Alloc
		t.Repeat(actions)
	})
}
