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

// TestDirectRepeats makes random calls without synchronizing the ranks, so that they wait for
// each other only inside the kernels. Each rank is delayed at random, on the host or on its
// stream. A full test runs every kernel that copies or that sums bfloat16.
func TestDirectRepeats(t *testing.T) {
	calls, size := 2_000, int64(5<<20)
	if full() {
		calls, size = 100_000, 2*maxOfferBytes
	}
	random := newRandom(t)
	p := newTestbed(t, ranksUpTo(t, 4), size, random)
	groups := memberLists(t)
	p.regroupAndRegister(groups[len(groups)-1]...)
	p.drawInputs(driver.BFloat16)
	p.reduced = formula.Reduce(driver.RankOrder, driver.Sum, driver.BFloat16, p.inputs)
	var batches []batch
	for count := 0; count < calls; count += len(batches[len(batches)-1].trials) {
		batches = append(batches, p.mixedBatch())
	}
	seed := random.Uint64()
	p.must(func(m *testRank) error {
		own := rand.New(rand.NewPCG(seed, uint64(m.rank)))
		for i := range batches {
			err := errors.Join(m.delay(own), p.launchBatch(m, &batches[i]), m.delay(own))
			if err == nil {
				err = p.checkOutputs(m, &batches[i], true)
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
			sums := strings.Contains(name, "_bf16_") && !strings.HasPrefix(name, "norm")
			return !sums && !strings.Contains(name, "_copy_")
		})
	}
	p.ranks[0].requireKernels(t, wanted)
}

// mixedBatch returns a batch of random operations with small counts. In a full test, one call in
// a hundred instead uses a random kernel, and all kernels are equally likely.
func (p *testbed) mixedBatch() batch {
	b := batch{layout: layout{
		dataType: driver.BFloat16, inPlace: p.random.IntN(2) == 0, loose: p.random.IntN(2) == 0,
	}}
	offers := p.offers(b.layout)
	kinds := slices.Sorted(maps.Keys(offers))
	for range 100 {
		c := p.smallTrial()
		if full() && p.random.IntN(100) == 0 {
			same := offers[kinds[p.random.IntN(len(kinds))]]
			c = same[p.random.IntN(len(same))]
			c.count -= p.random.Int64N(100)
		}
		c.root = p.random.IntN(len(p.ranks))
		if p.add(&b, c) {
			break
		}
	}
	return b
}

func (p *testbed) smallTrial() trial {
	i := p.random.IntN(len(operations) + 1)
	if i == len(operations) {
		return trial{operation: driver.Barrier}
	}
	return trial{operation: operations[i], count: p.random.Int64N(1 << p.random.IntN(12))}
}

func (m *testRank) delay(random *rand.Rand) error {
	yields := random.IntN(1 << random.IntN(10))
	yield := func() {
		for range yields {
			runtime.Gosched()
		}
	}
	switch random.IntN(4) {
	case 0:
		return m.stream.Host(yield)
	case 1:
		yield()
	}
	return nil
}
