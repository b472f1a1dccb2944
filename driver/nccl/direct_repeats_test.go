package nccl

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
)

// TestDirectRepeats makes random calls, in which ranks wait for each other only in the kernels.
// Each rank is randomly delayed, before a launch or on its stream. A full test runs every kernel
// that sums bfloat16 or copies.
func TestDirectRepeats(t *testing.T) {
	calls, size := 2_000, int64(5<<20)
	if full() {
		calls, size = 100_000, 2*mostOffered
	}
	draws := drawing(t)
	p := newPitch(t, atMost(t, 4), size, draws)
	groups := casts(t)
	p.enroll(groups[len(groups)-1]...)
	p.sow(driver.BFloat16)
	p.reduced = formula.Reduce(driver.RankOrder, driver.Sum, driver.BFloat16, p.inputs)
	var batches []batch
	for made := 0; made < calls; made += len(batches[len(batches)-1].trials) {
		batches = append(batches, p.mixed())
	}
	begin := draws.Uint64()
	p.must(func(m *testRank) error {
		own := rand.New(rand.NewPCG(begin, uint64(m.rank)))
		for i := range batches {
			err := errors.Join(m.dawdle(own), p.perform(m, &batches[i]), m.dawdle(own))
			if err == nil {
				err = p.judge(m, &batches[i], true)
			}
			if err != nil {
				m.group.Abort(err) // so that the other ranks do not wait for this one
				return fmt.Errorf("batch %d: %w", i, err)
			}
		}
		return nil
	})
	var wanted []string
	if full() {
		wanted = slices.DeleteFunc(kernelsOf(t, len(p.ranks)), func(name string) bool {
			return !strings.Contains(name, "_bf16_") && !strings.Contains(name, "_copy_")
		})
	}
	p.ranks[0].demand(t, wanted)
}

// mixed returns a batch of all operations with small counts. In a full test, one call in a hundred
// is chosen by its kernel, with the same probability for each kernel.
func (p *pitch) mixed() batch {
	b := batch{way: way{
		dataType: driver.BFloat16, inPlace: p.draws.IntN(2) == 0, loose: p.draws.IntN(2) == 0,
	}}
	offers := p.offers(b.way)
	kinds := slices.Sorted(maps.Keys(offers))
	for range 100 {
		c := p.small()
		if full() && p.draws.IntN(100) == 0 {
			same := offers[kinds[p.draws.IntN(len(kinds))]]
			c = same[p.draws.IntN(len(same))]
			c.count -= p.draws.Int64N(100)
		}
		c.root = p.draws.IntN(len(p.ranks))
		if p.add(&b, c) {
			break
		}
	}
	return b
}

// small draws an operation and a small count.
func (p *pitch) small() trial {
	i := p.draws.IntN(len(operations) + 1)
	if i == len(operations) {
		return trial{operation: driver.Barrier}
	}
	return trial{operation: operations[i], count: p.draws.Int64N(1 << p.draws.IntN(12))}
}

// dawdle delays a rank randomly.
func (m *testRank) dawdle(draws *rand.Rand) error {
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
