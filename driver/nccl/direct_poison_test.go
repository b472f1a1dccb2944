package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/dl"
)

// breaks lists the ways in which calls are made to fail.
var breaks = []string{
	"a missing rank", "a different call", "an abort at any time", "a failed block",
}

// TestFailedCallsPoisonTheirOutput makes calls of every family of kernels fail, and checks every
// element of their outputs and around them. Each element must be correct, poison (all bits are
// set), or another NaN. If the call cannot have succeeded, at least one element must be poison. A
// call that was refused must have written nothing.
func TestFailedCallsPoisonTheirOutput(t *testing.T) {
	draws := drawing(t)
	p := newPitch(t, atMost(t, 4), pinnedBytes, draws)
	types := []driver.DataType{driver.Float32, driver.Float16, driver.BFloat16, driver.Int32}
	operations := []driver.Operation{
		driver.AllReduce, driver.ReduceScatter, driver.Reduce, driver.AllGather, driver.Broadcast,
		driver.AllToAll,
	}
	all := casts(t)
	for _, bytes := range []int64{40, 30 << 10, 400 << 10, 1500 << 10, 7<<20 + 1<<19} {
		for _, o := range operations {
			c := trial{way: way{dataType: types[draws.IntN(len(types))]}, operation: o}
			c.inPlace = draws.IntN(2) == 0 && (o != driver.AllToAll || bytes < 1<<20)
			members := all[draws.IntN(len(all))]
			if o == driver.ReduceScatter || o == driver.AllGather || o == driver.AllToAll {
				bytes = min(bytes, pinnedBytes/int64(len(members))-1<<16)
			}
			if c.inPlace && bytes > 1<<20 && c.dataType == driver.Int32 {
				c.dataType = driver.Float32 // a late peer may add up poison, which is visible in floats only
			}
			c.count = max(1, bytes/int64(c.dataType.Size())-draws.Int64N(3))
			c.loose = bytes < 1<<19 && draws.IntN(2) == 0
			c.root = draws.IntN(len(members))
			p.breakOff(members, c, breaks[draws.IntN(len(breaks))])
			if bytes > 1<<20 { // parts with other alignments, and often in place
				c.inPlace = o == driver.AllGather || c.inPlace
				c.count |= 1
				p.breakOff(members, c, breaks[3])
			}
		}
	}
	ran := map[string]bool{} // by family
	for _, m := range p.opened {
		for name := range m.ran(t) {
			if family := familyOf(name); family != "" {
				ran[family] = true
			}
		}
	}
	for _, family := range []string{"line_sum", "line_copy", "wide_copy", "bulk_sum", "bulk_copy"} {
		if !ran[family] {
			t.Errorf("no %s kernel has failed, but %v", family, ran)
		}
	}
	t.Logf("failed: %v", ran)
}

// isNaN reports whether an element is NaN, as sums of poison are.
func isNaN(t driver.DataType, element []byte) bool {
	if t == driver.Int32 {
		return false
	}
	v := value(t, element, 0)
	return v != v
}

// familyOf returns the family of a kernel that moves data between ranks, or "".
func familyOf(name string) string {
	for _, family := range []string{
		"line_sum", "line_copy", "line_two_shot", "unrolled_sum", "wide_sum", "wide_copy", "bulk_sum",
		"bulk_copy", "bulk_two_shot",
	} {
		if strings.HasPrefix(name, family+"_") {
			return family
		}
	}
	return ""
}

// broken describes a rank's part in a failed call.
type broken struct{ launched, unfinished bool }

// breakOff connects a group, makes a call fail in it, and checks the outputs on all ranks.
func (p *pitch) breakOff(members []int, c trial, how string) {
	p.t.Helper()
	p.enroll(members...)
	p.sow(c.dataType)
	p.reduced = formula.Reduce(driver.RankOrder, driver.Sum, c.dataType, p.inputs)
	b := batch{way: c.way}
	if p.add(&b, c) || len(b.trials) == 0 {
		p.t.Fatalf("%v does not fit", &c)
	}
	c = b.trials[0]
	parts := make([]broken, len(members))
	badRank := p.draws.IntN(len(members))
	var launching sync.WaitGroup // ranks without a mistake
	launching.Add(len(members) - 1)
	wait := time.Duration(p.draws.IntN(3000)) * time.Microsecond
	p.must(func(m *testRank) error {
		send, recv := p.fields(m, b.way)
		return errors.Join(p.poison(m, &b, send, recv), m.stream.Synchronize(p.t.Context()))
	})
	p.must(func(m *testRank) error {
		send, recv := p.fields(m, b.way)
		call := c.call(m.rank, send, recv)
		part := &parts[m.rank]
		switch {
		case how == breaks[0] && m.rank == badRank:
			launching.Wait()
			m.group.Abort(errAborted)
			return nil
		case how == breaks[1] && m.rank == badRank:
			call.Digest++
		case how == breaks[2] && m.rank == badRank:
			<-time.After(wait / 2)
		case how == breaks[3] && m.rank == badRank:
			if err := m.failBlock(p.testGroup, 1+p.draws.IntN(3)); err != nil {
				return err
			}
		}
		part.launched = m.launch(m.stream, call) == nil
		if m.rank != badRank {
			launching.Done()
		}
		part.unfinished = how == breaks[0] || how == breaks[1]
		if m.rank != badRank {
			return nil
		}
		switch how {
		case breaks[2]:
			<-time.After(wait / 2)
			m.group.Abort(errAborted)
		case breaks[3]:
			// The other blocks have finished. The peers still wait for the failed block.
			err := m.stream.Synchronize(p.t.Context())
			m.group.Abort(errAborted)
			return err
		}
		return nil
	})
	p.must(func(m *testRank) error {
		_ = m.stream.Synchronize(p.t.Context()) // returns the fault, or nil
		return nil
	})
	p.must(func(m *testRank) error {
		if err := p.judgeBroken(m, &b, parts[m.rank]); err != nil {
			return fmt.Errorf("%s: %w", how, err)
		}
		return nil
	})
}

// failBlock sets the fault word of a block of this rank's next kernel, as if another block had
// failed before.
func (m *testRank) failBlock(w *testGroup, block int) error {
	at, err := m.group.(*communicator).direct.exchange.Places()
	if err != nil {
		return err
	}
	const state, fault = 16, 8 // the size of State in kernels/src/call.h, and the offset of fault
	copy(m.pinned, []byte{1, 0, 0, 0})
	return errors.Join(
		m.stream.Copy(at.Exchange[m.rank]+uintptr(state*block+fault), dl.AddressOf(&m.pinned[0]), 4),
		m.stream.Synchronize(w.t.Context()))
}

// judgeBroken checks the output of a failed call and the memory around it.
func (p *pitch) judgeBroken(m *testRank, b *batch, part broken) error {
	_, recv := p.fields(m, b.way)
	size, c := int64(b.dataType.Size()), &b.trials[0]
	end := recv.base + (b.end+margin)*size
	got, err := m.copied(p.testGroup, recv.memory.segment.Address(), end)
	if err != nil {
		return err
	}
	want, outputs := p.wants[m.number][:len(got)], c.pieces(m.rank, &p.sources)
	left := b
	if !part.launched {
		left = &batch{way: b.way} // the memory is unchanged
	}
	p.draw(m, left, recv, 0, want)
	poisoned := 0
	for _, w := range outputs {
		if begin, end := recv.base+w.to*size, recv.base+(w.to+w.count)*size; part.launched {
			poisoned += allowPoison(b.dataType, got[begin:end], want[begin:end])
		}
	}
	if !bytes.Equal(got, want) {
		return p.differ(m, b, recv, 0, got, want)
	}
	if part.launched && part.unfinished && poisoned == 0 && len(outputs) > 0 {
		return fmt.Errorf("%v on %d ranks: group rank %d has no poison", c, len(p.ranks), m.rank)
	}
	return nil
}

// allowPoison copies the poison and other NaNs of a result to the expected values, and counts them.
// It compares ranges of 4 KiB first, since most of them are correct or poison as a whole.
func allowPoison(t driver.DataType, got, want []byte) (poisoned int) {
	const batchBytes = 4 << 10
	size := t.Size()
	for len(got) > 0 {
		n := min(batchBytes, len(got))
		switch {
		case bytes.Equal(got[:n], want[:n]):
		case isPoison(got[:n]):
			poisoned += n / size
			copy(want, got[:n])
		default:
			for i := 0; i < n; i += size {
				if element := got[i : i+size]; isPoison(element) || isNaN(t, element) {
					poisoned++
					copy(want[i:], element)
				}
			}
		}
		got, want = got[n:], want[n:]
	}
	return poisoned
}
