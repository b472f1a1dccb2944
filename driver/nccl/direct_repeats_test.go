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

// TestDirectRepeats runs batches of random calls. Random delays make ranks reach the kernels, where
// they wait for each other, at different times.
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
	largestGroup := groups[len(groups)-1]
	p.regroupAndRegister(largestGroup...)
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
				m.group.Abort(err) // ends the waits of the other ranks
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

// copyAndSumKernels returns the kernels that copy or sum bfloat16.
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

// drawBatch returns up to 100 trials. They are small, except for about 1 % if all cases run.
func (p *testbed) drawBatch() batch {
	inPlace := p.random.IntN(2) == 0
	noWindow := p.random.IntN(2) == 0
	b := batch{layout: layout{
		dataType: driver.BFloat16, inPlace: inPlace, noWindow: noWindow,
	}}
	offers := p.offers(b.layout)
	for range 100 {
		c := p.drawSmallTrial()
		if runsAllCases() && p.random.IntN(100) == 0 {
			c = p.drawOffer(offers)
		}

		c.root = p.random.IntN(len(p.ranks))
		isFull := p.add(&b, c)
		if isFull {
			break
		}
	}

	return b
}

// drawOffer draws a kernel, and then one of its trials.
func (p *testbed) drawOffer(trialsByKernel map[string][]trial) trial {
	kernelNames := slices.Sorted(maps.Keys(trialsByKernel)) // reproducible with a seed
	kernel := kernelNames[p.random.IntN(len(kernelNames))]
	trials := trialsByKernel[kernel]
	c := trials[p.random.IntN(len(trials))]
	c.count -= p.random.Int64N(100) // avoid round counts
	return c
}

// drawSmallTrial returns a barrier, or a trial with a count below 2,048. It prefers small counts.
func (p *testbed) drawSmallTrial() trial {
	i := p.random.IntN(len(operations) + 1)
	if i == len(operations) {
		return trial{operation: driver.Barrier}
	}

	limit := int64(1) << p.random.IntN(12)
	return trial{operation: operations[i], count: p.random.Int64N(limit)}
}

// delay delays the host, the stream or neither for fewer than 512 yields. Short delays are more
// likely.
func (m *testRank) delay(random *rand.Rand) error {
	limit := 1 << random.IntN(10)
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
