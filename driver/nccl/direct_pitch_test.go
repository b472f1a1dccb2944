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

// testbed runs trials (test calls) on a test group's memory and checks the results. Each rank has
// buffers inside and outside windows (memory registered with NCCL).
type testbed struct {
	*testGroup
	sources
	size      int64  // of symmetric memory, in bytes
	plainSize int64  // of memory outside windows, in bytes
	calls     uint64 // number of calls in batches so far
	tested    int    // number of calls checked so far
	random    *rand.Rand
	// memory holds the input and output buffers of each rank of the world.
	memory []struct{ send, recv, plainSend, plainRecv *region }
	// wants holds a buffer for each rank, into which the expected contents of the rank's memory are
	// written.
	wants [][]byte
}

// defaultPlainSize exceeds the size of exchange memory.
const defaultPlainSize = 9 << 20

// newTestbed opens a test group in which each rank has symmetric memory of the given size.
func newTestbed(t *testing.T, ranks int, size int64, random *rand.Rand) *testbed {
	t.Helper()
	return newTestbedWithSizes(t, ranks, size, defaultPlainSize, random)
}

func newTestbedWithSizes(
	t *testing.T, ranks int, size, plainSize int64, random *rand.Rand,
) *testbed {
	t.Helper()
	w := newTestGroup(t, ranks, time.Minute)
	p := &testbed{testGroup: w, size: size, plainSize: plainSize, random: random}
	p.memory = make([]struct{ send, recv, plainSend, plainRecv *region }, ranks)
	p.wants = make([][]byte, ranks)
	p.must(func(m *testRank) (err error) {
		own := &p.memory[m.number]
		p.wants[m.number] = make([]byte, pinnedBytes)
		for _, s := range []struct {
			region **region
			size   int64
		}{
			{&own.send, size},
			{&own.recv, size},
			{&own.plainSend, plainSize},
			{&own.plainRecv, plainSize},
		} {
			if *s.region, err = m.mapRegion(s.size); err != nil {
				return err
			}
		}

		return nil
	})
	return p
}

// regroupAndRegister connects a group of the given ranks and registers their symmetric memory.
func (p *testbed) regroupAndRegister(worldRanks ...int) {
	p.t.Helper()
	p.regroup(worldRanks...)
	p.must(func(m *testRank) error {
		own := &p.memory[m.number]
		return errors.Join(m.register(p.testGroup, own.send, 1), m.register(p.testGroup, own.recv, 2))
	})
	needDirect(p.t, p.ranks[0].group)
}

// fields returns the positions of a rank's inputs and outputs in memory. Outside windows, the
// offsets differ between ranks.
func (p *testbed) fields(m *testRank, w layout) (send, recv field) {
	own, size := &p.memory[m.number], int64(w.dataType.Size())
	if w.noWindow {
		return field{own.plainSend, leadBytes + size*int64(3*m.rank+1)},
			field{own.plainRecv, leadBytes + size*int64(5*m.rank%7)}
	}

	return field{own.send, leadBytes}, field{own.recv, leadBytes}
}

// margin is the number of elements after the last output that are checked for stray writes.
const margin = 64

// room returns the number of elements that fit into the output buffer.
func (p *testbed) room(w layout) int64 {
	size := p.size
	if w.noWindow {
		size = p.plainSize
	}

	return (size-2*leadBytes)/int64(w.dataType.Size()) - margin
}

// drawInputs draws random elements for all ranks and fills their inputs.
func (p *testbed) drawInputs(t driver.DataType) {
	p.t.Helper()
	p.inputs = nil
	for range p.ranks {
		p.inputs = append(p.inputs, drawElements(t, p.random))
	}

	p.fillInputs(t)
}

// fillInputs fills each rank's inputs with copies of its elements.
func (p *testbed) fillInputs(t driver.DataType) {
	p.t.Helper()
	p.must(func(m *testRank) error {
		for _, noWindow := range []bool{false, true} {
			w := layout{dataType: t, noWindow: noWindow}
			send, _ := p.fields(m, w)
			bytes := (p.room(w) + margin) * int64(t.Size())
			if err := m.fillField(send, p.inputs[m.rank], bytes); err != nil {
				return err
			}
		}

		return m.stream.Synchronize(p.t.Context())
	})
}

// fillField fills the given number of bytes of a field with copies of a tile.
func (m *testRank) fillField(f field, tile []byte, bytes int64) error {
	at, done := f.memory.segment.Address()+uintptr(f.base), min(int64(len(tile)), bytes)
	copy(m.pinned, tile)
	err := m.stream.Copy(at, dl.AddressOf(&m.pinned[0]), done)
	for err == nil && done < bytes {
		more := min(done, bytes-done)
		err = m.stream.Copy(at+uintptr(done), at, more)
		done += more
	}

	return err
}

// batch lists calls whose outputs follow each other in memory. Before the calls, that memory
// contains the inputs if the calls are in place, and a pattern if they are not.
type batch struct {
	layout
	trials []trial
	end    int64 // end of the last output, in elements
}

// add appends a trial to a batch, unless no kernel supports the call. If the batch has no room
// for the call, add appends nothing and returns true.
func (p *testbed) add(b *batch, c trial) (isFull bool) {
	c.layout, c.recvOffset = b.layout, b.end+1+p.random.Int64N(40)
	c.sendOffset = p.random.Int64N(40)
	if c.inPlace {
		c.sendOffset = c.recvOffset
	}

	send, _ := c.spans(len(p.ranks))
	room, end := p.room(b.layout), c.recvOffset+c.extent(len(p.ranks))
	if end > room || c.sendOffset+send > room {
		return true
	}

	m := p.ranks[0]
	input, output := p.fields(m, c.layout)
	call := c.call(0, input, output)
	if err := m.group.Offer(call).Refusal(driver.PathDirect); err != nil {
		p.checkRefusal(&c, err)
		return false
	}

	p.calls++
	c.digest = p.calls * 0x9e3779b97f4a7c15
	b.trials, b.end = append(b.trials, c), end
	return false
}

// checkRefusal fails the test if the direct path should have supported the refused call c.
func (p *testbed) checkRefusal(c *trial, err error) {
	p.t.Helper()
	large := c.count*int64(c.dataType.Size()*len(p.ranks)) > 7<<20
	isInPlaceAllToAll := c.operation == driver.AllToAll && c.inPlace
	if !large || c.operation.Reduces() || !c.noWindow && !isInPlaceAllToAll {
		p.t.Fatalf("Refusal(PathDirect) of %v = %v, want nil", c, err)
	}
}

// run launches a batch on all ranks, and compares the outputs and the gaps between them with the
// expected contents. If the batch is large and whole is not set, it compares only samples.
func (p *testbed) run(b *batch, whole bool) {
	p.t.Helper()
	if len(b.trials) == 0 {
		return
	}

	p.must(func(m *testRank) error {
		if err := p.launchBatch(m, b); err != nil {
			return err
		}

		return p.checkOutputs(m, b, whole)
	})
	p.tested += len(b.trials)
}

// launchBatch prepares the output memory and launches the calls.
func (p *testbed) launchBatch(m *testRank, b *batch) error {
	send, recv := p.fields(m, b.layout)
	if err := p.prepareOutputs(m, b, send, recv); err != nil {
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

// prepareOutputs fills the output memory with the inputs if the calls are in place, and with a
// pattern if they are not.
func (p *testbed) prepareOutputs(m *testRank, b *batch, send, recv field) error {
	begin, size := recv.memory.segment.Address(), int64(b.dataType.Size())
	bytes := (b.end + margin) * size
	if !b.inPlace {
		return m.stream.Fill(begin, untouched[0], recv.base+bytes)
	}

	return errors.Join(m.stream.Fill(begin, untouched[0], recv.base),
		m.stream.Copy(recv.at(0, b.dataType), send.at(0, b.dataType), bytes))
}

func (p *testbed) checkOutputs(m *testRank, b *batch, whole bool) error {
	_, recv := p.fields(m, b.layout)
	end := recv.base + (b.end+margin)*int64(b.dataType.Size())
	for _, s := range p.samples(recv.base, end, whole) {
		got, err := m.readDevice(p.testGroup, recv.memory.segment.Address()+uintptr(s[0]), s[1]-s[0])
		if err != nil {
			return err
		}

		want := p.wants[m.number][:len(got)]
		p.writeExpected(m, b, recv, s[0], want)
		if !bytes.Equal(got, want) {
			return p.differenceError(m, b, recv, s[0], got, want)
		}
	}

	return nil
}

// sampleLimit is the size above which only samples of the memory are compared.
const sampleLimit = pinnedBytes

// samples returns the byte ranges to compare: the beginning, the end, both sides of each border
// between parts, and some ranges in between.
func (p *testbed) samples(base, end int64, whole bool) [][2]int64 {
	const some = 64 << 10
	var all [][2]int64
	if whole || end <= sampleLimit {
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

// untouched is the pattern with which output memory is filled before a call.
var untouched = bytes.Repeat([]byte{0xa5}, 1<<10)

// writeExpected fills want with the expected memory contents, starting at byte offset start.
func (p *testbed) writeExpected(m *testRank, b *batch, recv field, start int64, want []byte) {
	size := int64(b.dataType.Size())
	fillWithTile(want, untouched, 0)
	if b.inPlace {
		skip := max(0, recv.base-start)
		fillWithTile(want[min(skip, int64(len(want))):], p.inputs[m.rank], start+skip-recv.base)
	}

	for i := range b.trials {
		for _, w := range b.trials[i].pieces(m.rank, &p.sources) {
			begin, end := recv.base+w.offset*size-start, recv.base+(w.offset+w.count)*size-start
			cut := max(0, -begin)
			if end = min(end, int64(len(want))); begin+cut < end {
				fillWithTile(want[begin+cut:end], w.tile, w.tileOffset*size+cut)
			}
		}
	}
}

// differenceError returns an error that describes the first difference and names the call whose
// output differs. got and want begin at byte offset start.
func (p *testbed) differenceError(
	m *testRank, b *batch, recv field, start int64, got, want []byte,
) error {
	i := 0
	for got[i] == want[i] {
		i++
	}

	element := (start + int64(i) - recv.base) / int64(b.dataType.Size())
	last := &b.trials[0]
	for i := range b.trials {
		if b.trials[i].recvOffset <= element {
			last = &b.trials[i]
		}
	}

	return fmt.Errorf("%v on %d ranks, group rank %d: byte %d of the memory (element %d of the "+
		"call) is %#02x, want %#02x", last, len(p.ranks), m.rank, start+int64(i),
		element-last.recvOffset, got[i], want[i])
}
