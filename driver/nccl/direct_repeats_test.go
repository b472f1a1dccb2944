package nccl

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"symmem/driver"
)

// TestDirectRepeats lets ranks run through random calls without a wait for each other but for that
// of the kernels. Each rank is late by itself at times, before a launch or on its stream.
func TestDirectRepeats(t *testing.T) {
	calls := 2_000
	if full() {
		calls = 100_000
	}
	draws := drawing(t)
	p := newPitch(t, min(4, devices(t)), 5<<20, draws)
	groups := casts(t)
	p.enroll(groups[len(groups)-1]...)
	p.sow(driver.BFloat16)
	p.reduced = reduced(driver.BFloat16, driver.Sum, p.inputs)
	var batches []batch
	for made := 0; made < calls; made += len(batches[len(batches)-1].trials) {
		batches = append(batches, p.mixed())
	}
	begin := draws.Uint64()
	p.must(func(m *mate) error {
		own := rand.New(rand.NewPCG(begin, uint64(m.rank)))
		for i := range batches {
			err := errors.Join(m.dawdle(own), p.perform(m, &batches[i]), m.dawdle(own))
			if err == nil {
				err = p.judge(m, &batches[i], true)
			}
			if err != nil {
				m.group.Abort(err) // so that nobody waits for this rank
				return fmt.Errorf("batch %d: %w", i, err)
			}
		}
		return nil
	})
}

// mixed makes a batch of all operations. One in a thousand is large, if tests run in full.
func (p *pitch) mixed() batch {
	b := batch{way: way{
		dataType: driver.BFloat16, inPlace: p.draws.IntN(2) == 0, loose: p.draws.IntN(2) == 0,
	}}
	operations := []driver.Operation{
		driver.AllReduce, driver.ReduceScatter, driver.Reduce, driver.AllGather, driver.Broadcast,
		driver.AllToAll, driver.Barrier,
	}
	for range 100 {
		c := trial{
			operation: operations[p.draws.IntN(len(operations))],
			root:      p.draws.IntN(len(p.playing)), count: p.draws.Int64N(1 << p.draws.IntN(12)),
		}
		if c.operation == driver.Barrier {
			c.count = 0
		}
		if full() && c.operation != driver.Barrier && p.draws.IntN(1000) == 0 {
			c.count = 300_000
		}
		if p.add(&b, c) {
			break
		}
	}
	return b
}

// dawdle makes a rank late at times.
func (m *mate) dawdle(draws *rand.Rand) error {
	yields := draws.IntN(1 << draws.IntN(10))
	late := func() {
		for range yields {
			runtime.Gosched()
		}
	}
	switch draws.IntN(4) {
	case 0:
		return m.stream.Host(late)
	case 1:
		late()
	}
	return nil
}
