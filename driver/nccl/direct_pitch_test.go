package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/dl"
)

// pitch runs trials in memory of a test group, and stores the expected contents of that memory.
type pitch struct {
	*testGroup
	sources
	size   int64 // of symmetric memory, in bytes
	loose  int64 // of memory outside windows, in bytes
	calls  uint64
	tested int
	draws  *rand.Rand
	// memory has the inputs and outputs of each rank of the world, in windows and outside.
	memory []struct{ send, recv, looseSend, looseRecv *stretch }
	wants  [][]byte
}

// looseSize is the size of memory outside windows, which is larger than exchange memory.
const looseSize = 9 << 20

// newPitch opens a test group with symmetric memory of a size on each rank.
func newPitch(t *testing.T, ranks int, size int64, draws *rand.Rand) *pitch {
	t.Helper()
	return newPitchOf(t, ranks, size, looseSize, draws)
}

// newPitchOf calls newPitch with a size of memory outside windows.
func newPitchOf(t *testing.T, ranks int, size, loose int64, draws *rand.Rand) *pitch {
	t.Helper()
	p := &pitch{testGroup: newTestGroup(t, ranks, time.Minute), size: size, loose: loose, draws: draws}
	p.memory = make([]struct{ send, recv, looseSend, looseRecv *stretch }, ranks)
	p.wants = make([][]byte, ranks)
	p.must(func(m *testRank) (err error) {
		own := &p.memory[m.number]
		p.wants[m.number] = make([]byte, pinnedBytes)
		for _, s := range []struct {
			of   **stretch
			size int64
		}{
			{&own.send, size},
			{&own.recv, size},
			{&own.looseSend, loose},
			{&own.looseRecv, loose},
		} {
			if *s.of, err = m.grow(s.size); err != nil {
				return err
			}
		}
		return nil
	})
	return p
}

// enroll connects a group of some ranks and registers their symmetric memory.
func (p *pitch) enroll(numbers ...int) {
	p.t.Helper()
	p.regroup(numbers...)
	p.must(func(m *testRank) error {
		own := &p.memory[m.number]
		return errors.Join(m.register(p.testGroup, own.send, 1), m.register(p.testGroup, own.recv, 2))
	})
	needDirect(p.t, p.ranks[0].group)
}

// fields returns the locations of the elements of a way on a rank. Outside windows they differ
// between ranks.
func (p *pitch) fields(m *testRank, w way) (send, recv field) {
	own, size := &p.memory[m.number], int64(w.dataType.Size())
	if w.loose {
		return field{own.looseSend, lead + size*int64(3*m.rank+1)},
			field{own.looseRecv, lead + size*int64(5*m.rank%7)}
	}
	return field{own.send, lead}, field{own.recv, lead}
}

// margin is the number of elements after the last output that are compared, too.
const margin = 64

// room returns the number of elements for which the output has room.
func (p *pitch) room(w way) int64 {
	size := p.size
	if w.loose {
		size = p.loose
	}
	return (size-2*lead)/int64(w.dataType.Size()) - margin
}

// sow draws the elements of a type for all ranks, and repeats them over the inputs.
func (p *pitch) sow(t driver.DataType) {
	p.t.Helper()
	p.inputs = nil
	for range p.ranks {
		p.inputs = append(p.inputs, numbers(t, p.draws))
	}
	p.spreadInputs(t)
}

// spreadInputs repeats the elements of each rank over its inputs.
func (p *pitch) spreadInputs(t driver.DataType) {
	p.t.Helper()
	p.must(func(m *testRank) error {
		for _, loose := range []bool{false, true} {
			w := way{dataType: t, loose: loose}
			send, _ := p.fields(m, w)
			bytes := (p.room(w) + margin) * int64(t.Size())
			if err := m.spread(send, p.inputs[m.rank], bytes); err != nil {
				return err
			}
		}
		return m.stream.Synchronize(p.t.Context())
	})
}

// spread fills a number of bytes of a field with copies of a tile.
func (m *testRank) spread(f field, of []byte, bytes int64) error {
	at, done := f.memory.segment.Address()+uintptr(f.base), min(int64(len(of)), bytes)
	copy(m.pinned, of)
	err := m.stream.Copy(at, dl.AddressOf(&m.pinned[0]), done)
	for err == nil && done < bytes {
		more := min(done, bytes-done)
		err = m.stream.Copy(at+uintptr(done), at, more)
		done += more
	}
	return err
}

// batch is a sequence of calls whose outputs follow each other in memory. Before the calls that
// memory is poisoned, or holds the inputs.
type batch struct {
	way
	trials []trial
	end    int64 // end of the last output, in elements
}

// add appends a trial to a batch, if there is room and a kernel.
func (p *pitch) add(b *batch, c trial) (full bool) {
	c.way, c.to = b.way, b.end+1+p.draws.Int64N(40)
	c.from = p.draws.Int64N(40)
	if c.inPlace {
		c.from = c.to
	}
	send, _ := c.spans(len(p.ranks))
	room, end := p.room(b.way), c.to+c.extent(len(p.ranks))
	if end > room || c.from+send > room {
		return true
	}
	m := p.ranks[0]
	from, to := p.fields(m, c.way)
	call := c.call(0, from, to)
	if err := m.group.Offer(call).Refusal(driver.PathDirect); err != nil {
		p.allowed(&c, err)
		return false
	}
	p.calls++
	c.digest = p.calls * 0x9e3779b97f4a7c15
	b.trials, b.end = append(b.trials, c), end
	return false
}

// allowed ends the test if a call without a kernel should have one.
func (p *pitch) allowed(c *trial, err error) {
	p.t.Helper()
	large := c.count*int64(c.dataType.Size()*len(p.ranks)) > 7<<20
	if !large || c.operation.Reduces() || !c.loose && !(c.operation == driver.AllToAll && c.inPlace) {
		p.t.Fatalf("%v: %v", c, err)
	}
}

// run performs a batch on all ranks and compares the memory of its outputs, including the gaps
// between them, with the expected contents. It compares only samples of large batches, unless whole
// is set.
func (p *pitch) run(b *batch, whole bool) {
	p.t.Helper()
	if len(b.trials) == 0 {
		return
	}
	p.must(func(m *testRank) error {
		if err := p.perform(m, b); err != nil {
			return err
		}
		return p.judge(m, b, whole)
	})
	p.tested += len(b.trials)
}

// perform prepares the outputs and queues the calls.
func (p *pitch) perform(m *testRank, b *batch) error {
	send, recv := p.fields(m, b.way)
	if err := p.poison(m, b, send, recv); err != nil {
		return err
	}
	for i := range b.trials {
		c := &b.trials[i]
		if err := m.launch(m.stream, c.call(m.rank, send, recv)); err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
	}
	return nil
}

func (p *pitch) poison(m *testRank, b *batch, send, recv field) error {
	begin, size := recv.memory.segment.Address(), int64(b.dataType.Size())
	bytes := (b.end + margin) * size
	if !b.inPlace {
		return m.stream.Fill(begin, untouched[0], recv.base+bytes)
	}
	return errors.Join(m.stream.Fill(begin, untouched[0], recv.base),
		m.stream.Copy(recv.at(0, b.dataType), send.at(0, b.dataType), bytes))
}

// judge compares the output with the expected contents.
func (p *pitch) judge(m *testRank, b *batch, whole bool) error {
	_, recv := p.fields(m, b.way)
	end := recv.base + (b.end+margin)*int64(b.dataType.Size())
	for _, s := range p.samples(recv.base, end, whole) {
		got, err := m.copied(p.testGroup, recv.memory.segment.Address()+uintptr(s[0]), s[1]-s[0])
		if err != nil {
			return err
		}
		want := p.wants[m.number][:len(got)]
		p.draw(m, b, recv, s[0], want)
		if !bytes.Equal(got, want) {
			return p.differ(m, b, recv, s[0], got, want)
		}
	}
	return nil
}

// sampled is the largest amount of memory that is always compared as a whole.
const sampled = pinnedBytes

// samples returns the ranges to compare: the beginning, the end, both sides of the borders between
// parts, and places between them.
func (p *pitch) samples(base, end int64, whole bool) [][2]int64 {
	const some = 64 << 10
	var all [][2]int64
	if whole || end <= sampled {
		for at := int64(0); at < end; at += pinnedBytes {
			all = append(all, [2]int64{at, min(at+pinnedBytes, end)})
		}
		return all
	}
	const places = 12
	step := (end - base) / places
	for i := range int64(places) {
		all = append(all, [2]int64{base + i*step, base + i*step + some})
	}
	for r := range int64(len(p.ranks)) {
		border := base + (end-base)/int64(len(p.ranks))*r
		all = append(all, [2]int64{max(0, border-some/2), border + some/2})
	}
	return append(all, [2]int64{end - some, end})
}

// untouched is the initial contents of fields.
var untouched = bytes.Repeat([]byte{0xa5}, 1<<10)

// draw writes the expected contents of memory from an offset to want.
func (p *pitch) draw(m *testRank, b *batch, recv field, from int64, want []byte) {
	size := int64(b.dataType.Size())
	repeat(want, untouched, 0)
	if b.inPlace {
		skip := max(0, recv.base-from)
		repeat(want[min(skip, int64(len(want))):], p.inputs[m.rank], from+skip-recv.base)
	}
	for i := range b.trials {
		for _, w := range b.trials[i].pieces(m.rank, &p.sources) {
			begin, end := recv.base+w.to*size-from, recv.base+(w.to+w.count)*size-from
			cut := max(0, -begin)
			if end = min(end, int64(len(want))); begin+cut < end {
				repeat(want[begin+cut:end], w.of, w.from*size+cut)
			}
		}
	}
}

// differ returns an error that describes the first difference, and the call whose output it is in.
func (p *pitch) differ(m *testRank, b *batch, recv field, from int64, got, want []byte) error {
	at := 0
	for got[at] == want[at] {
		at++
	}
	element := (from + int64(at) - recv.base) / int64(b.dataType.Size())
	last := &b.trials[0]
	for i := range b.trials {
		if b.trials[i].to <= element {
			last = &b.trials[i]
		}
	}
	return fmt.Errorf("%v on %d ranks, group rank %d: byte %d of memory, element %d of the call, is "+
		"%#02x, want %#02x", last, len(p.ranks), m.rank, from+int64(at), element-last.to, got[at],
		want[at])
}
