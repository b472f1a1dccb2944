package nccl

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/dl"
)

// The failure modes are the ways in which failCall makes a call fail. A random rank, the bad rank,
// causes the failure.
const (
	missingRank   = "a missing rank"       // the bad rank aborts the group instead of launching
	differentCall = "a different call"     // the bad rank's call has another digest
	abortAnytime  = "an abort at any time" // may come after the call has succeeded
	failedBlock   = "a failed block"       // a thread block of the bad rank's kernel fails
)

var failureModes = []string{missingRank, differentCall, abortAnytime, failedBlock}

// TestFailedCallsPoisonTheirOutput makes calls fail in several families of kernels. Each output
// element must then be correct, poison (all bits are set), or another NaN, and the memory around
// the output must be unchanged. If the call cannot have succeeded, some element must be poison.
func TestFailedCallsPoisonTheirOutput(t *testing.T) {
	random := newRandom(t)
	p := newTestbed(t, ranksUpTo(t, 4), pinnedBytes, random)
	operations := []driver.Operation{
		driver.AllReduce, driver.ReduceScatter, driver.Reduce, driver.AllGather, driver.Broadcast,
		driver.AllToAll,
	}
	groups := memberLists(t)
	// From small to large, so that the calls use all families of kernels listed below.
	for _, callBytes := range []int64{40, 30 << 10, 400 << 10, 1500 << 10, 7<<20 + 1<<19} {
		for _, o := range operations {
			members := groups[random.IntN(len(groups))]
			size := callBytes
			if o == driver.ReduceScatter || o == driver.AllGather || o == driver.AllToAll {
				// Buffers with a part for each rank must fit into the pinned memory.
				size = min(size, pinnedBytes/int64(len(members))-1<<16)
			}

			c := drawFailingCall(random, o, size, len(members))
			p.failCall(members, c, failureModes[random.IntN(len(failureModes))])
			if size > 1<<20 { // again with misaligned parts
				c.inPlace = o == driver.AllGather || c.inPlace
				c.count |= 1
				p.failCall(members, c, failedBlock)
			}
		}
	}

	usedFamilies := map[string]bool{}
	for _, m := range p.opened {
		for name := range m.launchesByName(t) {
			if family := familyOf(name); family != "" {
				usedFamilies[family] = true
			}
		}
	}

	for _, family := range []string{"line_sum", "line_copy", "wide_copy", "bulk_sum", "bulk_copy"} {
		if !usedFamilies[family] {
			t.Errorf("no failed call used a %s kernel; got only %v", family, usedFamilies)
		}
	}

	t.Logf("kernel families of failed calls: %v", usedFamilies)
}

// drawFailingCall returns a call with a random type, layout and root, and with a count of about
// callBytes.
func drawFailingCall(random *rand.Rand, o driver.Operation, callBytes int64, ranks int) trial {
	types := []driver.DataType{driver.Float32, driver.Float16, driver.BFloat16, driver.Int32}
	c := trial{layout: layout{dataType: types[random.IntN(len(types))]}, operation: o}
	// The direct path does not support large in-place calls of AllToAll.
	c.inPlace = random.IntN(2) == 0 && (o != driver.AllToAll || callBytes < 1<<20)
	if c.inPlace && callBytes > 1<<20 && c.dataType == driver.Int32 {
		c.dataType = driver.Float32 // a late peer may add poison, which only floats reveal
	}

	// Up to 2 elements fewer, so that some counts are no multiple of an access by the kernel.
	c.count = max(1, callBytes/int64(c.dataType.Size())-random.Int64N(3))
	// Outside windows, the direct path supports only small calls.
	c.noWindow = callBytes < 1<<19 && random.IntN(2) == 0
	c.root = random.IntN(ranks)
	return c
}

// isNaN reports whether an element is a floating-point NaN. Poison and sums with poison are NaNs.
func isNaN(t driver.DataType, element []byte) bool {
	if t == driver.Int32 {
		return false
	}

	v := elementValue(t, element, 0)
	return v != v
}

// familyOf returns the family of a kernel, or "" if the kernel moves no data between ranks.
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

// failedLaunch describes what a rank did in a call that failed.
type failedLaunch struct {
	isLaunched bool // Launch returned no error
	mustFail   bool // the call cannot have succeeded
}

// failCall connects a group of the world ranks in members, makes the call c fail in the given
// mode, and checks the outputs on all ranks.
func (p *testbed) failCall(members []int, c trial, mode string) {
	p.t.Helper()
	p.regroupAndRegister(members...)
	p.drawInputs(c.dataType)
	p.reduced = formula.Reduce(driver.RankOrder, driver.Sum, c.dataType, p.inputs)
	b := batch{layout: c.layout}
	if p.add(&b, c) || len(b.trials) == 0 {
		p.t.Fatalf("the buffers have no room for the call, or no kernel supports it: %v", &c)
	}

	c = b.trials[0] // add has set the offsets and the digest
	p.must(func(m *testRank) error {
		send, recv := p.fields(m, b.layout)
		if err := p.prepareOutputs(m, &b, send, recv); err != nil {
			return err
		}

		return m.stream.Synchronize(p.t.Context())
	})
	launches := make([]failedLaunch, len(members)) // by group rank
	badRank := p.random.IntN(len(members))
	var othersLaunching sync.WaitGroup // ranks other than badRank that have not launched the call
	othersLaunching.Add(len(members) - 1)
	p.must(func(m *testRank) (err error) {
		send, recv := p.fields(m, b.layout)
		call := c.call(m.rank, send, recv)
		launched := &launches[m.rank]
		launched.mustFail = mode == missingRank || mode == differentCall
		if m.rank == badRank {
			launched.isLaunched, err = p.launchOnBadRank(m, call, mode, &othersLaunching)
			return err
		}

		launched.isLaunched = m.launch(m.stream, call) == nil
		othersLaunching.Done()
		return nil
	})
	p.must(func(m *testRank) error {
		_ = m.stream.Synchronize(p.t.Context()) // returns the fault, or nil
		return nil
	})
	p.must(func(m *testRank) error {
		if err := p.checkFailedOutputs(m, &b, launches[m.rank]); err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}

		return nil
	})
}

// launchOnBadRank causes the failure of a call on the bad rank, and reports whether this rank has
// launched the call. It returns an error only if it could not cause the failure.
func (p *testbed) launchOnBadRank(
	m *testRank, call driver.Call, mode string, othersLaunching *sync.WaitGroup,
) (isLaunched bool, err error) {
	switch mode {
	case missingRank:
		othersLaunching.Wait()
		m.group.Abort(errAborted)
		return false, nil
	case differentCall:
		call.Digest++
		return m.launch(m.stream, call) == nil, nil
	case abortAnytime:
		delay := time.Duration(p.random.IntN(1500)) * time.Microsecond
		<-time.After(delay)
		isLaunched = m.launch(m.stream, call) == nil
		<-time.After(delay)
		m.group.Abort(errAborted)
		return isLaunched, nil
	case failedBlock:
		block := 1 + p.random.IntN(3)
		if err := m.failBlock(p.testGroup, block); err != nil {
			return false, err
		}

		isLaunched = m.launch(m.stream, call) == nil
		// The other blocks have finished, but the peers still wait for the failed block.
		err = m.stream.Synchronize(p.t.Context())
		m.group.Abort(errAborted)
		return isLaunched, err
	default:
		return false, fmt.Errorf("unknown failure mode %q", mode)
	}
}

// failBlock sets the fault word that one thread block of this rank's next kernel reads. The block
// then behaves as if another block had failed.
func (m *testRank) failBlock(w *testGroup, block int) error {
	transport, err := m.group.(*communicator).direct.exchange.Transport()
	if err != nil {
		return err
	}

	const (
		stateBytes  = 16 // size of State in kernels/src/exchange.h; block b reads the b-th State
		faultOffset = 8  // of the fault word in State
	)
	address := transport.Exchange[m.rank] + uintptr(stateBytes*block+faultOffset)
	copy(m.pinned, []byte{1, 0, 0, 0}) // a fault word that is not 0
	if err := m.stream.Copy(address, dl.AddressOf(&m.pinned[0]), 4); err != nil {
		return err
	}

	return m.stream.Synchronize(w.t.Context())
}

// checkFailedOutputs compares the output memory of a rank with its expected contents, where poison
// and other NaNs may replace outputs. It returns an error about the first difference, or if poison
// is missing.
func (p *testbed) checkFailedOutputs(m *testRank, b *batch, launched failedLaunch) error {
	_, recv := p.fields(m, b.layout)
	size := int64(b.dataType.Size())
	c := &b.trials[0]
	checkedBytes := recv.base + (b.end+margin)*size // includes memory before and after the output
	got, err := m.readDevice(p.testGroup, recv.memory.segment.Address(), checkedBytes)
	if err != nil {
		return err
	}

	want := p.wants[m.number][:len(got)] // a buffer, which writeExpected fills
	if !launched.isLaunched {
		p.writeExpected(m, &batch{layout: b.layout}, recv, 0, want) // without calls: unchanged memory
		if !bytes.Equal(got, want) {
			return p.differenceError(m, b, recv, 0, got, want)
		}

		return nil
	}

	p.writeExpected(m, b, recv, 0, want)
	poisonCount := 0
	outputs := c.pieces(m.rank, &p.sources)
	for _, w := range outputs {
		begin := recv.base + w.offset*size
		end := begin + w.count*size
		poisonCount += allowPoison(b.dataType, got[begin:end], want[begin:end])
	}

	if !bytes.Equal(got, want) {
		return p.differenceError(m, b, recv, 0, got, want)
	}

	if launched.mustFail && poisonCount == 0 && len(outputs) > 0 {
		return fmt.Errorf("%v on %d ranks: the output of group rank %d has no poison, want some", c,
			len(p.ranks), m.rank)
	}

	return nil
}

// allowPoison copies poison and other NaNs from got to want, and returns the number of elements
// that it has copied. It compares ranges of 4 KiB first, because most ranges are completely
// correct or completely poison.
func allowPoison(t driver.DataType, got, want []byte) (poisonCount int) {
	const rangeBytes = 4 << 10
	size := t.Size()
	for len(got) > 0 {
		n := min(rangeBytes, len(got))
		switch {
		case bytes.Equal(got[:n], want[:n]):
			// All elements are correct.
		case isPoison(got[:n]):
			poisonCount += n / size
			copy(want, got[:n])
		default:
			for i := 0; i < n; i += size {
				if element := got[i : i+size]; isPoison(element) || isNaN(t, element) {
					poisonCount++
					copy(want[i:], element)
				}
			}
		}

		got, want = got[n:], want[n:]
	}

	return poisonCount
}
