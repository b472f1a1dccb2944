package nccl

import (
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

// A batch lists up to 100 random calls that all ranks make in the same order. Each rank runs it as
// follows: delay, launch the calls, delay, check their outputs. The delays are random and differ
// between ranks. The host does not synchronize the ranks, so that they wait for each other only in
// kernels.

// TestDirectRepeats runs random batches and checks their outputs. If all cases run (see
// runsAllCases), there are more calls, and all kernels that copy or sum bfloat16 must be used.
func TestDirectRepeats(t *testing.T) {
	callCount := 2_000
	bufferBytes := int64(5 << 20)
	if runsAllCases() {
		callCount = 100_000
		bufferBytes = 2 * maxOfferBytes
	}

	random := newRandom(t)
	p := newTestbed(t, ranksUpTo(t, 4), bufferBytes, random)
	groups := memberLists(t)
	p.regroupAndRegister(groups[len(groups)-1]...) // the largest group
	p.drawInputs(driver.BFloat16)
	p.reduced = formula.Reduce(driver.RankOrder, driver.Sum, driver.BFloat16, p.inputs)
	var batches []batch
	for drawnCount := 0; drawnCount < callCount; {
		b := p.drawBatch()
		batches = append(batches, b)
		drawnCount += len(b.trials)
	}

	seed := random.Uint64()
	p.must(func(m *testRank) error {
		rankRandom := rand.New(rand.NewPCG(seed, uint64(m.rank)))
		for i := range batches {
			if err := p.runWithDelays(m, &batches[i], rankRandom); err != nil {
				m.group.Abort(err) // so that the other ranks do not wait for this one
				return fmt.Errorf("batch %d: %w", i, err)
			}
		}

		return nil
	})
	var wantKernels []string
	if runsAllCases() {
		wantKernels = copyAndSumKernels(t, len(p.ranks))
	}

	p.ranks[0].requireKernels(t, wantKernels)
}

// copyAndSumKernels returns the kernels of the given number of ranks that copy or sum bfloat16.
func copyAndSumKernels(t *testing.T, ranks int) []string {
	t.Helper()
	var names []string
	for _, name := range kernelsOf(t, ranks) {
		isNorm := strings.HasPrefix(name, "norm")
		isSum := strings.Contains(name, "_bf16_") && !isNorm
		isCopy := strings.Contains(name, "_copy_")
		if isSum || isCopy {
			names = append(names, name)
		}
	}

	return names
}

// runWithDelays launches a batch, with a random delay before and after it, and checks the outputs.
func (p *testbed) runWithDelays(m *testRank, b *batch, random *rand.Rand) error {
	if err := m.delay(random); err != nil {
		return err
	}

	if err := p.launchBatch(m, b); err != nil {
		return err
	}

	if err := m.delay(random); err != nil {
		return err
	}

	const compareWhole = true
	return p.checkOutputs(m, b, compareWhole)
}

// drawBatch returns a batch of random calls with small counts. If all cases run, one call in 100
// instead has a count with which a randomly chosen kernel is used.
func (p *testbed) drawBatch() batch {
	inPlace := p.random.IntN(2) == 0
	noWindow := p.random.IntN(2) == 0
	b := batch{layout: layout{
		dataType: driver.BFloat16, inPlace: inPlace, noWindow: noWindow,
	}}
	offers := p.offers(b.layout)
	kernelNames := slices.Sorted(maps.Keys(offers)) // in the same order for the same seed
	for range 100 {
		c := p.drawSmallTrial()
		if runsAllCases() && p.random.IntN(100) == 0 {
			kernel := kernelNames[p.random.IntN(len(kernelNames))]
			kernelOffers := offers[kernel]
			c = kernelOffers[p.random.IntN(len(kernelOffers))]
			c.count -= p.random.Int64N(100) // so that not all counts are round
		}

		c.root = p.random.IntN(len(p.ranks))
		isFull := p.add(&b, c)
		if isFull {
			break
		}
	}

	return b
}

// drawSmallTrial returns a barrier, or a random operation with a count of less than 2,048. Small
// counts are more likely.
func (p *testbed) drawSmallTrial() trial {
	i := p.random.IntN(len(operations) + 1)
	if i == len(operations) {
		return trial{operation: driver.Barrier}
	}

	limit := int64(1) << p.random.IntN(12)
	return trial{operation: operations[i], count: p.random.Int64N(limit)}
}

// delay delays the host or the rank's stream for a random time, or does nothing. Short delays are
// more likely.
func (m *testRank) delay(random *rand.Rand) error {
	limit := 1 << random.IntN(10) // at most 512
	yields := random.IntN(limit)
	spin := func() {
		for range yields {
			runtime.Gosched()
		}
	}
	switch random.IntN(4) {
	case 0:
		return m.stream.Host(spin)
	case 1:
		spin()
	default: // no delay
	}

	return nil
}
