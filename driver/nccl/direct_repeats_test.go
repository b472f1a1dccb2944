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

// TestDirectRepeats makes random calls without synchronizing the ranks, so that they wait for each
// other only in kernels. Random delays are added on the host and on the streams. If all cases run,
// every kernel that copies or that sums bfloat16 must run.
func TestDirectRepeats(t *testing.T) {
	calls, size := 2_000, int64(5<<20)
	if runsAllCases() {
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
		batches = append(batches, p.drawBatch())
	}
	seed := random.Uint64()
	p.must(func(m *testRank) error {
		rankRandom := rand.New(rand.NewPCG(seed, uint64(m.rank)))
		for i := range batches {
			err := errors.Join(m.delay(rankRandom), p.launchBatch(m, &batches[i]), m.delay(rankRandom))
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
	var wantKernels []string
	if runsAllCases() {
		wantKernels = slices.DeleteFunc(kernelsOf(t, len(p.ranks)), func(name string) bool {
			isSum := strings.Contains(name, "_bf16_") && !strings.HasPrefix(name, "norm")
			return !isSum && !strings.Contains(name, "_copy_")
		})
	}
	p.ranks[0].requireKernels(t, wantKernels)
}

// drawBatch returns random operations with small counts. If all cases run, one call in a hundred
// instead uses a random kernel.
func (p *testbed) drawBatch() batch {
	b := batch{layout: layout{
		dataType: driver.BFloat16, inPlace: p.random.IntN(2) == 0, noWindow: p.random.IntN(2) == 0,
	}}
	offers := p.offers(b.layout)
	kinds := slices.Sorted(maps.Keys(offers))
	for range 100 {
		c := p.drawSmallTrial()
		if runsAllCases() && p.random.IntN(100) == 0 {
			kernelOffers := offers[kinds[p.random.IntN(len(kinds))]]
			c = kernelOffers[p.random.IntN(len(kernelOffers))]
			c.count -= p.random.Int64N(100)
		}
		c.root = p.random.IntN(len(p.ranks))
		if p.add(&b, c) {
			break
		}
	}
	return b
}

func (p *testbed) drawSmallTrial() trial {
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
